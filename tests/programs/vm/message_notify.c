// POSIX message queues that tell when a message comes: by a signal, by a
// thread, to one process at a time, and once.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <mqueue.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile sig_atomic_t told, code, value;
static sem_t by_thread;

static void on_signal(int sig, siginfo_t *info, void *context) {
    told++;
    code = info->si_code;
    value = info->si_value.sival_int;
}

static void in_thread(union sigval given) {
    printf("thread told: %d\n", given.sival_int);
    sem_post(&by_thread);
}

static void show(const char *what, int result) {
    printf("%s: %d %s\n", what, result, result < 0 ? strerrorname_np(errno) : "");
}

static void await(int count) {
    while (told < count)
        usleep(1000);
    printf("told %d, by a queue %d, value %d\n", told, code == SI_MESGQ, value);
}

int main(void) {
    setvbuf(stdout, NULL, _IONBF, 0);
    char name[64], text[64];
    snprintf(name, sizeof name, "/notify-%d", getpid());
    struct mq_attr attributes = {.mq_maxmsg = 4, .mq_msgsize = 64};
    mqd_t queue = mq_open(name, O_CREAT | O_EXCL | O_RDWR, 0600, &attributes);
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO};
    sigaction(SIGUSR1, &action, NULL);
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    event.sigev_value.sival_int = 7;

    show("no queue", mq_notify(-1, &event));
    show("a file", mq_notify(STDOUT_FILENO, &event));
    show("signal", mq_notify(queue, &event));
    show("twice", mq_notify(queue, &event));
    mq_send(queue, "one", 3, 1);
    await(1);
    // It was for one message, and the queue is not empty.
    show("again", mq_notify(queue, &event));
    mq_send(queue, "two", 3, 1);
    show("received", mq_receive(queue, text, sizeof text, NULL));
    show("received", mq_receive(queue, text, sizeof text, NULL));
    mq_send(queue, "three", 5, 1);
    await(2);
    show("received", mq_receive(queue, text, sizeof text, NULL));

    event.sigev_value.sival_int = 8;
    show("from a child", mq_notify(queue, &event));
    if (fork() == 0) {
        show("in the child", mq_notify(queue, &event));
        mq_send(queue, "four", 4, 1);
        _exit(0);
    }
    wait(NULL);
    await(3);
    show("received", mq_receive(queue, text, sizeof text, NULL));

    show("signal", mq_notify(queue, &event));
    show("removed", mq_notify(queue, NULL));
    struct sigevent silent = {.sigev_notify = SIGEV_NONE};
    show("silent", mq_notify(queue, &silent));
    mq_send(queue, "five", 4, 1);
    show("received", mq_receive(queue, text, sizeof text, NULL));
    printf("told %d\n", told);
    struct sigevent wrong = {.sigev_notify = 77};
    show("no such kind", mq_notify(queue, &wrong));

    sem_init(&by_thread, 0, 0);
    struct sigevent thread = {.sigev_notify = SIGEV_THREAD};
    thread.sigev_notify_function = in_thread;
    thread.sigev_value.sival_int = 9;
    show("thread", mq_notify(queue, &thread));
    mq_send(queue, "six", 3, 1);
    sem_wait(&by_thread);
    mq_close(queue);
    mq_unlink(name);
    return 0;
}
