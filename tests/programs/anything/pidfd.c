// A child as a descriptor: poll it, signal it, wait for it.
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
    pid_t child = fork();
    if (child == 0) {
        for (;;)
            pause();
    }
    int fd = syscall(SYS_pidfd_open, child, 0);
    if (fd < 0 && errno == ENOSYS) {
        // The fall-back every user of it has.
        kill(child, SIGTERM);
    } else {
        struct pollfd ready = {fd, POLLIN, 0};
        if (poll(&ready, 1, 0) != 0)
            return 1;
        if (syscall(SYS_pidfd_send_signal, fd, SIGTERM, NULL, 0))
            return 2;
        if (poll(&ready, 1, -1) != 1)
            return 3;
    }
    int status;
    if (waitpid(child, &status, 0) != child)
        return 4;
    printf("child ended by signal %d\n", WTERMSIG(status));
    return 0;
}
