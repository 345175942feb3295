#include "two.h"
#include <sys/epoll.h>
static int ends[2], poll_end, value;
static void *produce(void *x) {
    value = 8;
    if (write(ends[1], "x", 1) != 1)
        abort();
    return x;
}
static void *consume(void *x) {
    struct epoll_event event;
    char byte;
    epoll_wait(poll_end, &event, 1, -1);
    if (read(event.data.fd, &byte, 1) != 1)
        abort();
    printf("%d\n", value);
    return x;
}
int main(void) {
    if (pipe(ends))
        return 1;
    poll_end = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = ends[0]};
    epoll_ctl(poll_end, EPOLL_CTL_ADD, ends[0], &event);
    run(produce, consume);
}
