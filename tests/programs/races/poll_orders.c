#include "two.h"
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
// Being told that there is something to read carries order, without reading it.
static int values[3], ends[3];
static void *tells(void *x) {
    for (int i = 0; i < 3; i++) {
        values[i] = i + 1;
        eventfd_write(ends[i], 1);
    }
    return x;
}
static void *waits(void *x) {
    struct pollfd one = {.fd = ends[0], .events = POLLIN};
    fd_set set;
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 77};
    int group = epoll_create1(0);
    if (poll(&one, 1, -1) != 1)
        abort();
    printf("%d\n", values[0]);
    FD_ZERO(&set);
    FD_SET(ends[1], &set);
    if (select(ends[1] + 1, &set, 0, 0, 0) != 1)
        abort();
    printf("%d\n", values[1]);
    epoll_ctl(group, EPOLL_CTL_ADD, ends[2], &event);
    if (epoll_wait(group, &event, 1, -1) != 1)
        abort();
    printf("%d\n", values[2]);
    return x;
}
int main(void) {
    for (int i = 0; i < 3; i++)
        ends[i] = eventfd(0, 0);
    run(waits, tells);
}
