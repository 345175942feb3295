// System V shared memory, semaphores and message queues between two processes.
#include <stdio.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
    int memory = shmget(IPC_PRIVATE, 8192, IPC_CREAT | 0600);
    int semaphores = semget(IPC_PRIVATE, 2, IPC_CREAT | 0600);
    int queue = msgget(IPC_PRIVATE, IPC_CREAT | 0600);
    if (memory < 0 || semaphores < 0 || queue < 0) {
        perror("get");
        return 1;
    }
    long *shared = shmat(memory, NULL, 0);
    shmctl(memory, IPC_RMID, NULL);
    struct message {
        long type;
        char text[32];
    } message = {1, "hello"};
    if (fork() == 0) {
        struct sembuf take = {0, -1, 0}, give = {1, 1, 0};
        for (int i = 0; i < 20; i++) {
            semop(semaphores, &take, 1);
            shared[1] += shared[0] * 3;
            semop(semaphores, &give, 1);
        }
        struct message got;
        ssize_t n = msgrcv(queue, &got, sizeof got.text, 1, 0);
        got.type = 2;
        got.text[0] = n > 0 ? 'J' : '?';
        msgsnd(queue, &got, sizeof got.text, 0);
        shmdt(shared);
        _exit(0);
    }
    struct sembuf give = {0, 1, 0}, take = {1, -1, 0};
    for (int i = 0; i < 20; i++) {
        shared[0] = i;
        semop(semaphores, &give, 1);
        semop(semaphores, &take, 1);
    }
    msgsnd(queue, &message, sizeof message.text, 0);
    msgrcv(queue, &message, sizeof message.text, 2, 0);
    wait(NULL);
    printf("%ld %s\n", shared[1], message.text);
    semctl(semaphores, 0, IPC_RMID);
    msgctl(queue, IPC_RMID, NULL);
    return 0;
}
