// Locks on parts of files: from the current position, given up by closing any
// descriptor, deadlocks, and what else fcntl tells of files and pipes.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char name[] = "record_locks_XXXXXX";

static void show(const char *what, int result) {
    printf("%s: %d %s\n", what, result, result < 0 ? strerrorname_np(errno) : "");
}

static int set(int fd, int command, int kind, int whence, long start, long length) {
    struct flock lock = {.l_type = kind, .l_whence = whence, .l_start = start, .l_len = length};
    return fcntl(fd, command, &lock);
}

// What another process finds locked.
static void locked(const char *when) {
    printf("%s:", when);
    pid_t child = fork();
    if (child == 0) {
        int fd = open(name, O_RDWR);
        for (long at = 0; at < 100; at++) {
            struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
            fcntl(fd, F_GETLK, &lock);
            if (lock.l_type == F_UNLCK)
                continue;
            printf(" %s at %ld, %ld bytes%s", lock.l_type == F_WRLCK ? "written" : "read", lock.l_start,
                   lock.l_len, lock.l_pid == getppid() ? "" : " by another");
            if (lock.l_len == 0)
                break;
            at = lock.l_start + lock.l_len - 1;
        }
        printf("\n");
        _exit(0);
    }
    waitpid(child, NULL, 0);
}

static void no_op(int signal) {}

static void deadlock(void) {
    int lines[2], back[2];
    pipe(lines);
    pipe(back);
    int fd = open(name, O_RDWR);
    show("first", set(fd, F_SETLK, F_WRLCK, SEEK_SET, 0, 1));
    pid_t child = fork();
    if (child == 0) {
        set(fd, F_SETLK, F_WRLCK, SEEK_SET, 1, 1);
        write(lines[1], "x", 1);
        // Waits until the parent gives up the first.
        int result = set(fd, F_SETLKW, F_WRLCK, SEEK_SET, 0, 1);
        write(back[1], result == 0 ? "0" : "-", 1);
        _exit(0);
    }
    char byte;
    read(lines[0], &byte, 1);
    usleep(300000);
    show("circle", set(fd, F_SETLKW, F_WRLCK, SEEK_SET, 1, 1));
    set(fd, F_SETLK, F_UNLCK, SEEK_SET, 0, 1);
    read(back[0], &byte, 1);
    printf("the other: %c\n", byte);
    waitpid(child, NULL, 0);
    show("afterwards", set(fd, F_SETLKW, F_WRLCK, SEEK_SET, 1, 1));
    // Who is only held up is in no circle, and a signal ends the wait.
    child = fork();
    if (child == 0) {
        struct sigaction action = {.sa_handler = no_op};
        sigaction(SIGALRM, &action, NULL);
        alarm(1);
        show("held up", set(fd, F_SETLKW, F_WRLCK, SEEK_SET, 1, 1));
        _exit(0);
    }
    waitpid(child, NULL, 0);
    close(fd);
}

int main(void) {
    setvbuf(stdout, NULL, _IONBF, 0);
    int fd = mkstemp(name);
    write(fd, name, 20);
    lseek(fd, 10, SEEK_SET);
    show("from the position", set(fd, F_SETLK, F_WRLCK, SEEK_CUR, 2, 5));
    show("before it", set(fd, F_SETLK, F_RDLCK, SEEK_CUR, -4, 2));
    show("before the start", set(fd, F_SETLK, F_RDLCK, SEEK_CUR, -11, 2));
    show("backwards", set(fd, F_SETLK, F_WRLCK, SEEK_SET, 40, -4));
    show("from the end", set(fd, F_SETLK, F_RDLCK, SEEK_END, 1, 3));
    locked("so");
    show("lockf", lockf(fd, F_LOCK, 3));
    show("tested", lockf(fd, F_TEST, 30));
    locked("with lockf");
    struct flock asked = {.l_type = F_WRLCK, .l_whence = SEEK_CUR, .l_start = 1, .l_len = 7, .l_pid = 5};
    show("asked", fcntl(fd, F_GETLK, &asked));
    printf("%d %d %ld %ld %d\n", asked.l_type, asked.l_whence, asked.l_start, asked.l_len, asked.l_pid);
    show("bad address", fcntl(fd, F_SETLK, (void *)8));
    show("bad kind", set(fd, F_SETLK, 9, SEEK_SET, 0, 1));

    int same = dup(fd);
    close(same);
    locked("after closing a copy");
    set(fd, F_SETLK, F_WRLCK, SEEK_SET, 0, 7);
    close(open(name, O_RDONLY));
    locked("after closing another");
    set(fd, F_SETLK, F_WRLCK, SEEK_SET, 0, 7);
    same = dup(fd);
    dup2(STDERR_FILENO, same);
    locked("after replacing a copy");
    set(fd, F_OFD_SETLK, F_WRLCK, SEEK_SET, 3, 4);
    close(dup(fd));
    int other = open(name, O_RDWR);
    show("against a description", set(other, F_SETLK, F_WRLCK, SEEK_SET, 0, 0));
    close(fd);
    show("which is closed", set(other, F_SETLK, F_WRLCK, SEEK_SET, 0, 0));
    close(other);
    deadlock();

    int pipes[2];
    pipe(pipes);
    show("pipe", fcntl(pipes[0], F_GETPIPE_SZ));
    show("smaller than a page", fcntl(pipes[0], F_SETPIPE_SZ, 1));
    show("no power", fcntl(pipes[1], F_SETPIPE_SZ, 5000));
    show("too much", fcntl(pipes[1], F_SETPIPE_SZ, (1u << 31) + 1));
    char page[4096] = {0};
    write(pipes[1], page, 4096);
    write(pipes[1], page, 4096);
    show("too little", fcntl(pipes[1], F_SETPIPE_SZ, 4096));
    show("as it was", fcntl(pipes[0], F_GETPIPE_SZ));
    for (int advice = -1; advice < 8; advice++)
        printf("advice %d: %d %d %d\n", advice, posix_fadvise(other = open(name, O_RDONLY), 0, 0, advice),
               posix_fadvise(other, 0, -1, advice), posix_fadvise(pipes[0], 0, 0, advice)), close(other);
    show("readahead of a pipe", readahead(pipes[0], 0, 10));
    unlink(name);
    return 0;
}
