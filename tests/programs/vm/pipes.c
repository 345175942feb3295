// Pipes between threads, and all their edges.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define SHOW(e)                                                                \
    do {                                                                       \
        errno = 0;                                                             \
        long result = (long)(e);                                               \
        printf("%s = %ld (%s)\n", #e, result, result < 0 ? strerrorname_np(errno) : "ok"); \
    } while (0)

static int p[2], q[2];
static long total, sum, end;

static void *reader(void *arg) {
    unsigned char b[5000];
    long n;
    while ((n = read(p[0], b, sizeof b)) > 0) {
        total += n;
        for (long i = 0; i < n; i++) sum += b[i];
    }
    end = n;
    return arg;
}

static void *upper(void *arg) {
    char c;
    while (read(p[0], &c, 1) == 1) {
        if (c >= 'a' && c <= 'z') c -= 32;
        write(q[1], &c, 1);
    }
    close(q[1]);
    return arg;
}

int main(void) {
    signal(SIGPIPE, SIG_IGN);
    pthread_t t;
    SHOW(pipe(p));
    pthread_create(&t, NULL, reader, NULL);
    unsigned char *big = malloc(300000);
    for (int i = 0; i < 300000; i++) big[i] = i * 7;
    SHOW(write(p[1], big, 300000));
    SHOW(close(p[1]));
    pthread_join(t, NULL);
    printf("reader: %ld bytes, sum %ld, end %ld\n", total, sum, end);
    close(p[0]);

    pipe(p), pipe(q);
    pthread_create(&t, NULL, upper, NULL);
    SHOW(write(p[1], "shout", 5));
    close(p[1]);
    char b[16] = {0};
    int have = 0, n;
    while ((n = read(q[0], b + have, sizeof b - have - 1)) > 0) have += n;
    puts(b);
    pthread_join(t, NULL);
    close(p[0]), close(q[0]);

    SHOW(pipe2(p, O_NONBLOCK | O_CLOEXEC));
    SHOW(read(p[0], b, 1));
    SHOW(fcntl(p[1], F_GETPIPE_SZ));
    SHOW(write(p[1], big, 100000));
    SHOW(write(p[1], big, 1));
    int left;
    SHOW(ioctl(p[0], FIONREAD, &left));
    printf("left %d\n", left);
    struct pollfd f[2] = {{p[0], POLLIN, 0}, {p[1], POLLOUT, 0}};
    SHOW(poll(f, 2, 0));
    printf("%x %x\n", f[0].revents, f[1].revents);
    SHOW(read(p[0], big, 65536));
    SHOW(poll(f, 2, 0));
    printf("%x %x\n", f[0].revents, f[1].revents);
    SHOW(fcntl(p[1], F_SETPIPE_SZ, 4096));
    SHOW(write(p[1], big, 5000));
    SHOW(fcntl(p[1], F_GETFL) & (O_NONBLOCK | O_ACCMODE));
    SHOW(fcntl(p[1], F_GETFD));
    struct stat st;
    SHOW(fstat(p[0], &st));
    printf("fifo %d\n", S_ISFIFO(st.st_mode));
    SHOW(lseek(p[0], 0, SEEK_SET));
    SHOW(write(p[0], "x", 1));
    SHOW(read(p[1], b, 1));
    close(p[1]);
    SHOW(read(p[0], big, 4096));
    SHOW(read(p[0], big, 4096));
    SHOW(poll(f, 1, 0));
    printf("%x\n", f[0].revents);
    close(p[0]);
    pipe(p);
    close(p[0]);
    SHOW(write(p[1], "x", 1));
    f[0] = (struct pollfd){p[1], POLLOUT, 0};
    SHOW(poll(f, 1, 0));
    printf("%x\n", f[0].revents);
    close(p[1]);

    pipe(p), pipe(q);
    SHOW(write(p[1], "splice me", 9));
    SHOW(tee(p[0], q[1], 6, 0));
    SHOW(read(q[0], b, 16));
    SHOW(splice(p[0], NULL, q[1], NULL, 100, 0));
    SHOW(splice(p[0], NULL, q[1], NULL, 100, SPLICE_F_NONBLOCK));
    SHOW(vmsplice(q[1], &(struct iovec){"!", 1}, 1, 0));
    memset(b, 0, sizeof b);
    SHOW(read(q[0], b, 15));
    puts(b);
    return 0;
}
