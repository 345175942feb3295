// Who waits in a message queue or for a semaphore that is removed is told so.
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
    int queue = msgget(IPC_PRIVATE, 0600), set = semget(IPC_PRIVATE, 1, 0600);
    struct { long kind; char text[8]; } message;
    if (fork() == 0) {
        int result = msgrcv(queue, &message, sizeof message.text, 1, 0);
        _exit(result == -1 ? errno : 0);
    }
    if (fork() == 0) {
        struct sembuf take = {0, -1, 0};
        int result = semop(set, &take, 1);
        _exit(result == -1 ? errno : 0);
    }
    usleep(100000);
    msgctl(queue, IPC_RMID, NULL);
    semctl(set, 0, IPC_RMID);
    for (int i = 0; i < 2; i++) {
        int status;
        wait(&status);
        printf("%s\n", strerror(WEXITSTATUS(status)));
    }
    // Unknown from the start.
    printf("%s\n", msgrcv(queue, &message, 8, 1, 0) == -1 ? strerror(errno) : "?");
    return 0;
}
