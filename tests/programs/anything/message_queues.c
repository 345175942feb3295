// POSIX message queues, also through poll.
#include <fcntl.h>
#include <mqueue.h>
#include <poll.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
    char name[64], text[8192];
    snprintf(name, sizeof name, "/deadheat-%d", (int)getpid());
    mqd_t queue = mq_open(name, O_CREAT | O_EXCL | O_RDWR, 0600, NULL);
    if (queue < 0) {
        perror("mq_open");
        return 1;
    }
    mq_unlink(name);
    if (fork() == 0) {
        mq_send(queue, "low", 4, 1);
        mq_send(queue, "high", 5, 9);
        _exit(0);
    }
    wait(NULL);
    struct pollfd ready = {queue, POLLIN, 0};
    printf("%d\n", poll(&ready, 1, 1000));
    for (int i = 0; i < 2; i++) {
        unsigned priority;
        ssize_t n = mq_receive(queue, text, sizeof text, &priority);
        printf("%zd %s %u\n", n, text, priority);
    }
    return 0;
}
