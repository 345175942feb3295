#include "two.h"
#include <mqueue.h>
#include <fcntl.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
// Semaphores and message queues of the kernel carry order.
static int first, second, third;
static int semaphores, messages;
static mqd_t queue;
struct message {
    long type;
    char text[8];
};
static void *gives(void *x) {
    struct sembuf up = {0, 1, 0};
    struct message message = {1, "hello"};
    first = 1;
    semop(semaphores, &up, 1);
    second = 2;
    msgsnd(messages, &message, sizeof message.text, 0);
    third = 3;
    mq_send(queue, "x", 1, 0);
    return x;
}
static void *takes(void *x) {
    struct sembuf down = {0, -1, 0};
    struct message message;
    char byte[16];
    if (semop(semaphores, &down, 1))
        abort();
    printf("%d\n", first);
    if (msgrcv(messages, &message, sizeof message.text, 0, 0) < 0)
        abort();
    printf("%d\n", second);
    if (mq_receive(queue, byte, sizeof byte, 0) < 0)
        abort();
    printf("%d\n", third);
    return x;
}
int main(void) {
    struct mq_attr size = {.mq_maxmsg = 2, .mq_msgsize = 16};
    char name[32];
    snprintf(name, sizeof name, "/orders-%d", getpid());
    semaphores = semget(IPC_PRIVATE, 1, 0600);
    messages = msgget(IPC_PRIVATE, 0600);
    queue = mq_open(name, O_CREAT | O_RDWR, 0600, &size);
    if (semaphores < 0 || messages < 0 || queue < 0)
        return 1;
    mq_unlink(name);
    run(takes, gives);
    semctl(semaphores, 0, IPC_RMID);
    msgctl(messages, IPC_RMID, 0);
}
