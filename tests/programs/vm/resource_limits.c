// RLIMIT_FSIZE, RLIMIT_CPU and RLIMIT_NPROC: what the calls return, which
// signals come, and who dies of them.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int seen;
static void count(int sig) { seen += sig == SIGXFSZ; }

static void limit(int resource, rlim_t soft, rlim_t hard) {
    struct rlimit limit = {soft, hard};
    printf("set %d: %d\n", resource, setrlimit(resource, &limit));
}

static void show(const char *what, long result) {
    printf("%s: %ld %s, signals %d\n", what, result, result < 0 ? strerrorname_np(errno) : "",
           seen);
}

static void end(const char *what, pid_t pid) {
    int status;
    waitpid(pid, &status, 0);
    printf("%s: exited %d code %d, signalled %d by %d\n", what, WIFEXITED(status),
           WIFEXITED(status) ? WEXITSTATUS(status) : 0, WIFSIGNALED(status),
           WIFSIGNALED(status) ? WTERMSIG(status) : 0);
}

static void file_size(void) {
    static char block[8192];
    char name[] = "/tmp/limits-XXXXXX", other[] = "/tmp/limits-XXXXXX";
    int fd = mkstemp(name), from = mkstemp(other);
    unlink(other);
    write(from, block, sizeof block);
    signal(SIGXFSZ, count);
    limit(RLIMIT_FSIZE, 5000, 100000);
    show("part of it", write(fd, block, 8192));
    show("nothing more", write(fd, block, 1));
    show("inside", pwrite(fd, block, 100, 4000));
    show("across", pwrite(fd, block, 3000, 4000));
    struct iovec parts[2] = {{block, 4000}, {block, 4000}};
    lseek(fd, 0, SEEK_SET);
    show("parts", writev(fd, parts, 2));
    show("truncate", ftruncate(fd, 6000));
    show("truncate by name", truncate(name, 6000));
    show("shorter", ftruncate(fd, 10));
    show("fallocate", posix_fallocate(fd, 0, 20000));
    lseek(from, 0, SEEK_SET);
    lseek(fd, 4990, SEEK_SET);
    show("sendfile", sendfile(fd, from, NULL, 8192));
    int append = open(name, O_WRONLY | O_APPEND);
    ftruncate(fd, 4999);
    show("append", write(append, block, 2));
    show("append more", write(append, block, 2));
    signal(SIGXFSZ, SIG_IGN);
    show("ignored", write(append, block, 2));
    limit(RLIMIT_FSIZE, 6000, 100000);
    show("raised", write(append, block, 2));
    int pipes[2];
    pipe(pipes);
    show("pipes have no size", write(pipes[1], block, 8192));
    fflush(stdout);
    signal(SIGXFSZ, SIG_DFL);
    pid_t pid = fork();
    if (pid == 0) {
        pwrite(fd, block, 1, 7000);
        printf("not here\n");
        _exit(1);
    }
    end("by default", pid);
    limit(RLIMIT_FSIZE, RLIM_INFINITY, RLIM_INFINITY);
    struct rlimit now;
    getrlimit(RLIMIT_FSIZE, &now);
    printf("now %d\n", now.rlim_cur == RLIM_INFINITY);
    unlink(name);
}

static void out_of_time(int sig) {
    struct rlimit limit;
    getrlimit(RLIMIT_CPU, &limit);
    printf("signal %d, limit now %ld\n", sig, (long)limit.rlim_cur);
    exit(5);
}

static void processor_time(void) {
    fflush(stdout);
    pid_t handled = fork();
    if (handled == 0) {
        signal(SIGXCPU, out_of_time);
        struct rlimit limit = {1, 3};
        setrlimit(RLIMIT_CPU, &limit);
        for (volatile long i = 0;; i++) {}
    }
    pid_t killed = fork();
    if (killed == 0) {
        signal(SIGXCPU, SIG_IGN);
        struct rlimit limit = {1, 1};
        setrlimit(RLIMIT_CPU, &limit);
        for (volatile long i = 0;; i++) {}
    }
    end("handled", handled);
    end("killed", killed);
}

static void *nothing(void *argument) { return argument; }

static void processes(void) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        limit(RLIMIT_NPROC, 1, 1);
        // The limit does not bind root.
        if (getuid() == 0) setuid(54321);
        pid_t more = fork();
        if (more == 0) _exit(0);
        show("fork", more < 0 ? -1 : 0);
        pthread_t thread;
        int made = pthread_create(&thread, NULL, nothing, NULL);
        printf("thread: %s\n", made ? strerrorname_np(made) : "made");
        exit(0);
    }
    end("few processes", pid);
}

int main(void) {
    file_size();
    processor_time();
    processes();
    return 0;
}
