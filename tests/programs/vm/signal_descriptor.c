// Signals read from a descriptor, alone and in an epoll set.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

static void *later(void *arg) {
    usleep(10000);
    kill(getpid(), SIGUSR2);
    return arg;
}

int main(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGUSR2);
    sigprocmask(SIG_BLOCK, &set, NULL);
    int fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    struct signalfd_siginfo info;
    long n = read(fd, &info, sizeof info);
    printf("%ld %s\n", n, strerrorname_np(errno));
    raise(SIGUSR1);
    n = read(fd, &info, sizeof info);
    printf("%ld signal %d own %d\n", n, info.ssi_signo, info.ssi_pid == (unsigned)getpid());
    int ep = epoll_create1(0);
    epoll_ctl(ep, EPOLL_CTL_ADD, fd, &(struct epoll_event){EPOLLIN, {.fd = 7}});
    struct epoll_event e;
    printf("nothing: %d\n", epoll_wait(ep, &e, 1, 0));
    pthread_t t;
    pthread_create(&t, NULL, later, NULL);
    printf("woken: %d\n", epoll_wait(ep, &e, 1, -1));
    n = read(fd, &info, sizeof info);
    printf("%ld signal %d\n", n, info.ssi_signo);
    pthread_join(t, NULL);
    sigdelset(&set, SIGUSR1);
    printf("changed %d\n", signalfd(fd, &set, 0) == fd);
    raise(SIGUSR1);
    n = read(fd, &info, sizeof info);
    printf("%ld %s\n", n, strerrorname_np(errno));
    return 0;
}
