// Descriptor tables, flags, locks and limits; the process seen through /proc.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <termios.h>
#include <unistd.h>

#define SHOW(e)                                                                \
    do {                                                                       \
        errno = 0;                                                             \
        long result = (long)(e);                                               \
        printf("%s = %ld (%s)\n", #e, result, result < 0 ? strerrorname_np(errno) : "ok"); \
    } while (0)

static void *named(void *arg) {
    prctl(PR_SET_NAME, "second-thread-too-long");
    char name[17] = {0}, path[64], line[64] = {0};
    prctl(PR_GET_NAME, name);
    snprintf(path, sizeof path, "/proc/self/task/%ld/comm", syscall(SYS_gettid));
    int fd = open(path, O_RDONLY);
    read(fd, line, sizeof line - 1);
    printf("%s %s", name, line);
    close(fd);
    return arg;
}

int main(int argc, char **argv) {
    int fd = open("/dev/null", O_RDWR);
    SHOW(dup2(fd, 20));
    SHOW(dup3(fd, 21, O_CLOEXEC));
    SHOW(dup3(fd, fd, 0));
    SHOW(dup2(fd, fd));
    SHOW(dup2(99, 5));
    SHOW(fcntl(fd, F_DUPFD, 20));
    SHOW(fcntl(21, F_GETFD));
    SHOW(fcntl(20, F_SETFD, FD_CLOEXEC));
    SHOW(fcntl(20, F_GETFD));
    SHOW(fcntl(fd, F_SETFL, O_NONBLOCK));
    SHOW(fcntl(20, F_GETFL) & O_NONBLOCK);
    SHOW(close_range(20, 30, 0));
    SHOW(close(20));
    struct rlimit r = {16, 4096};
    SHOW(setrlimit(RLIMIT_NOFILE, &r));
    int last = 0, n;
    while ((n = dup(fd)) >= 0) last = n;
    printf("last %d, %s\n", last, strerrorname_np(errno));
    SHOW(close_range(fd + 1, 100, 0));
    SHOW(getrlimit(RLIMIT_NOFILE, &r));
    printf("%ld %ld\n", (long)r.rlim_cur, (long)r.rlim_max);

    char name[] = "/tmp/dh-lock-XXXXXX";
    int l = mkstemp(name), m = open(name, O_RDWR);
    SHOW(flock(l, LOCK_EX));
    SHOW(flock(m, LOCK_EX | LOCK_NB));
    SHOW(flock(l, LOCK_UN));
    struct flock k = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 10};
    SHOW(fcntl(l, F_OFD_SETLK, &k));
    SHOW(fcntl(m, F_OFD_SETLK, &k));
    struct flock g = k;
    SHOW(fcntl(m, F_OFD_GETLK, &g));
    printf("held %d\n", g.l_type == F_WRLCK);
    k.l_type = F_UNLCK;
    SHOW(fcntl(l, F_OFD_SETLK, &k));
    k.l_type = F_WRLCK;
    SHOW(fcntl(m, F_SETLKW, &k));
    unlink(name);

    struct termios t;
    SHOW(tcgetattr(fd, &t));
    struct winsize w;
    SHOW(ioctl(l, TIOCGWINSZ, &w));
    SHOW(isatty(l));

    char b[4096] = {0}, exe[4096] = {0};
    printf("exe is the program: %d\n",
           readlink("/proc/self/exe", exe, sizeof exe) > 0 && !strcmp(realpath(argv[0], b), exe));
    int c = open("/proc/self/cmdline", O_RDONLY);
    memset(b, 0, sizeof b);
    n = read(c, b, sizeof b);
    printf("cmdline %d\n", !strcmp(b, argv[0]) && n == (int)strlen(argv[0]) + 1);
    close(c);
    FILE *maps = fopen("/proc/self/maps", "r");
    int found = 0, inside = 0, stack = 0;
    char line[4096];
    while (fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        sscanf(line, "%lx-%lx", &from, &to);
        inside |= from <= (unsigned long)main && (unsigned long)main < to && strstr(line, "r-xp");
        stack |= from <= (unsigned long)&argc && (unsigned long)&argc < to && strstr(line, "[stack]");
        found |= strstr(line, exe) != NULL;
    }
    fclose(maps);
    printf("maps: program %d code %d stack %d\n", found, inside, stack);
    FILE *status = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, status))
        if (!strncmp(line, "Name:", 5) || !strncmp(line, "Threads:", 8)) fputs(line, stdout);
    fclose(status);
    char link[64], target[100] = {0};
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    SHOW(readlink(link, target, sizeof target));
    puts(target);
    struct stat st;
    SHOW(stat("/proc/self/fd/9999", &st));
    int p[2];
    pipe(p);
    snprintf(link, sizeof link, "/dev/fd/%d", p[1]);
    int again = open(link, O_WRONLY);
    SHOW(write(again, "via /dev/fd", 11));
    memset(b, 0, sizeof b);
    SHOW(read(p[0], b, 20));
    puts(b);
    int count = 0;
    DIR *d = opendir("/proc/self/fd");
    for (struct dirent *e; (e = readdir(d));) count += e->d_name[0] != '.';
    closedir(d);
    int open_now = 0;
    for (int i = 0; i < 100; i++) open_now += fcntl(i, F_GETFD) >= 0;
    printf("listed one more than open: %d\n", count - open_now);
    write(open("/dev/stdout", O_WRONLY), "", 0);

    pthread_t th;
    pthread_create(&th, NULL, named, NULL);
    pthread_join(th, NULL);
    struct utsname u;
    SHOW(uname(&u));
    puts(u.sysname);
    cpu_set_t set;
    SHOW(sched_getaffinity(0, sizeof set, &set));
    printf("cpus %d\n", CPU_COUNT(&set) == sysconf(_SC_NPROCESSORS_ONLN));
    SHOW(getuid() == geteuid());
    SHOW(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    SHOW(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
    SHOW(getpriority(PRIO_PROCESS, 0));
    struct rusage ru;
    SHOW(getrusage(RUSAGE_SELF, &ru));
    SHOW(syscall(SYS_membarrier, 0, 0, 0) >= 0);
    return 0;
}
