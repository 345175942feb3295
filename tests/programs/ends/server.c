// A server that gets no requests; its timer goes on for ever, and another
// thread looks at what the timer counts.
#include <netinet/in.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

static volatile long ticks, seen;

static void *watch(void *unused) {
    for (;;) {
        usleep(700);
        seen = ticks;
    }
    return unused;
}

int main(void) {
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {
        .sin_family = AF_INET,
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
    };
    bind(listener, (struct sockaddr *)&address, sizeof address);
    listen(listener, 5);
    int timer = timerfd_create(CLOCK_MONOTONIC, 0);
    struct itimerspec often = {{0, 1000000}, {0, 1000000}};
    timerfd_settime(timer, 0, &often, 0);
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener};
    epoll_ctl(set, EPOLL_CTL_ADD, listener, &event);
    event.data.fd = timer;
    epoll_ctl(set, EPOLL_CTL_ADD, timer, &event);
    pthread_t watcher;
    pthread_create(&watcher, 0, watch, 0);
    puts("ready");
    fflush(stdout);
    for (;;) {
        uint64_t times;
        if (epoll_wait(set, &event, 1, -1) == 1 && event.data.fd == timer &&
            read(timer, &times, sizeof times) == sizeof times)
            ticks += times;
    }
}
