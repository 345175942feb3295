// eventfd, timerfd and epoll: level, edge, one-shot, nested, time-outs.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define SHOW(e)                                                                \
    do {                                                                       \
        errno = 0;                                                             \
        long result = (long)(e);                                               \
        printf("%s = %ld (%s)\n", #e, result, result < 0 ? strerrorname_np(errno) : "ok"); \
    } while (0)

static int ep;
static struct epoll_event got[8];

static void wait_for(const char *what, int timeout) {
    errno = 0;
    int n = epoll_wait(ep, got, 8, timeout);
    printf("%s: %d", what, n);
    for (int i = 0; i < n; i++) printf(" [%x %d]", got[i].events, got[i].data.fd);
    puts("");
}

static int op(int what, int fd, uint32_t events) {
    return epoll_ctl(ep, what, fd, &(struct epoll_event){.events = events, .data.fd = fd});
}

static long ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static int ev;

static void *later(void *arg) {
    usleep(20000);
    uint64_t one = 1;
    write(ev, &one, 8);
    return arg;
}

int main(void) {
    uint64_t v = 0;
    ev = eventfd(3, EFD_NONBLOCK);
    SHOW(read(ev, &v, 8));
    printf("value %ld\n", (long)v);
    SHOW(read(ev, &v, 8));
    SHOW(read(ev, &v, 4));
    int sem = eventfd(2, EFD_SEMAPHORE | EFD_NONBLOCK);
    SHOW(read(sem, &v, 8));
    SHOW(read(sem, &v, 8));
    SHOW(read(sem, &v, 8));
    v = UINT64_MAX;
    SHOW(write(sem, &v, 8));
    v--;
    SHOW(write(sem, &v, 8));
    v = 1;
    SHOW(write(sem, &v, 8));
    close(sem);

    ep = epoll_create1(EPOLL_CLOEXEC);
    int p[2];
    pipe(p);
    SHOW(op(EPOLL_CTL_ADD, p[0], EPOLLIN));
    SHOW(op(EPOLL_CTL_ADD, p[0], EPOLLIN));
    wait_for("nothing", 0);
    write(p[1], "ab", 2);
    wait_for("level", 0);
    wait_for("level again", 0);
    SHOW(op(EPOLL_CTL_MOD, p[0], EPOLLIN | EPOLLET));
    wait_for("edge after mod", 0);
    wait_for("edge spent", 0);
    write(p[1], "c", 1);
    wait_for("edge on new bytes", 0);
    char b[10];
    read(p[0], b, 1);
    wait_for("edge after partial read", 0);
    SHOW(op(EPOLL_CTL_MOD, p[0], EPOLLIN | EPOLLONESHOT));
    wait_for("one-shot", 0);
    wait_for("one-shot spent", 0);
    SHOW(op(EPOLL_CTL_MOD, p[0], EPOLLIN | EPOLLONESHOT));
    wait_for("one-shot armed", 0);
    SHOW(op(EPOLL_CTL_DEL, p[0], 0));
    SHOW(op(EPOLL_CTL_DEL, p[0], 0));
    SHOW(op(EPOLL_CTL_ADD, p[1], EPOLLOUT | EPOLLET));
    wait_for("writable", 0);
    wait_for("writable spent", 0);
    SHOW(op(EPOLL_CTL_ADD, p[0], EPOLLIN | EPOLLRDHUP));
    close(p[1]);
    wait_for("hang-up", 0);
    close(p[0]);
    wait_for("closed members leave", 0);
    SHOW(op(EPOLL_CTL_ADD, ep, EPOLLIN));
    SHOW(op(EPOLL_CTL_ADD, 77, EPOLLIN));

    SHOW(op(EPOLL_CTL_ADD, ev, EPOLLIN));
    pthread_t t;
    pthread_create(&t, NULL, later, NULL);
    long start = ms();
    wait_for("woken by a thread", 5000);
    printf("waited as told: %d\n", ms() - start >= 19);
    pthread_join(t, NULL);
    read(ev, &v, 8);
    start = ms();
    wait_for("time-out", 30);
    printf("waited as told: %d\n", ms() - start >= 29);

    int tf = timerfd_create(CLOCK_MONOTONIC, 0);
    struct itimerspec s = {{0, 10000000}, {0, 20000000}};
    SHOW(timerfd_settime(tf, 0, &s, NULL));
    SHOW(op(EPOLL_CTL_ADD, tf, EPOLLIN));
    wait_for("timer", 1000);
    SHOW(read(tf, &v, 8));
    printf("expired %d\n", v >= 1);
    usleep(35000);
    SHOW(read(tf, &v, 8));
    printf("expired %d\n", v >= 3);
    s = (struct itimerspec){{0, 0}, {0, 0}};
    SHOW(timerfd_settime(tf, 0, &s, NULL));
    SHOW(timerfd_gettime(tf, &s));
    printf("left %ld\n", s.it_value.tv_nsec);
    int outer = epoll_create1(0);
    epoll_ctl(outer, EPOLL_CTL_ADD, ep, &(struct epoll_event){.events = EPOLLIN, .data.fd = 500});
    SHOW(epoll_wait(outer, got, 8, 0));
    v = 1;
    write(ev, &v, 8);
    SHOW(epoll_wait(outer, got, 8, 0));
    printf("nested %d\n", got[0].data.fd);
    struct pollfd f[2] = {{ep, POLLIN, 0}, {-1, POLLIN, 0}};
    SHOW(poll(f, 2, 0));
    fd_set set;
    FD_ZERO(&set);
    FD_SET(ev, &set);
    FD_SET(tf, &set);
    SHOW(select(ev + tf + 1, &set, NULL, NULL, &(struct timeval){0, 1000}));
    printf("%d %d\n", FD_ISSET(ev, &set) != 0, FD_ISSET(tf, &set) != 0);
    read(ev, &v, 8);
    start = ms();
    FD_ZERO(&set);
    FD_SET(ev, &set);
    SHOW(select(ev + 1, &set, NULL, NULL, &(struct timeval){0, 25000}));
    printf("waited as told: %d\n", ms() - start >= 24);
    SHOW(poll(NULL, 0, 5));
    f[0].fd = 99;
    SHOW(poll(f, 1, 0));
    printf("%x\n", f[0].revents);
    return 0;
}
