// pthread_kill, EINTR, cancellation, a signal that a lock is waited with.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static volatile int handled;
static pthread_t handled_by;
static pthread_barrier_t barrier;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static sem_t never;

static void handler(int sig) { (void)sig; handled++; handled_by = pthread_self(); }

static void *sleeper(void *unused) {
    (void)unused;
    pthread_barrier_wait(&barrier);
    struct timespec time = {100, 0};
    int result = nanosleep(&time, NULL);
    return (void *)(long)(result == -1 ? errno : 0);
}

static void *waiter(void *unused) {
    (void)unused;
    pthread_barrier_wait(&barrier);
    return (void *)(long)(sem_wait(&never) == -1 ? errno : 0);
}

static void *locker(void *unused) {
    (void)unused;
    pthread_barrier_wait(&barrier);
    int result = pthread_mutex_lock(&lock);
    pthread_mutex_unlock(&lock);
    return (void *)(long)result;
}

static void cleaned(void *what) { printf("cleanup %s\n", (char *)what); }

static void *cancelled(void *unused) {
    (void)unused;
    pthread_cleanup_push(cleaned, "asleep");
    pthread_barrier_wait(&barrier);
    sleep(1000);
    pthread_cleanup_pop(0);
    return NULL;
}

static void *cancelled_running(void *unused) {
    (void)unused;
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    pthread_barrier_wait(&barrier);
    for (volatile long i = 0;; i++) {}
}

static pthread_t start(void *(*body)(void *)) {
    pthread_t thread;
    pthread_create(&thread, NULL, body, NULL);
    pthread_barrier_wait(&barrier);
    struct timespec moment = {0, 10000000};
    nanosleep(&moment, NULL);
    return thread;
}

int main(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    sigaction(SIGUSR1, &action, NULL);
    pthread_barrier_init(&barrier, NULL, 2);
    sem_init(&never, 0, 0);
    void *result;

    pthread_t thread = start(sleeper);
    pthread_kill(thread, SIGUSR1);
    pthread_join(thread, &result);
    printf("sleeper: %d handled %d by it %d\n", (int)(long)result == EINTR, handled, pthread_equal(handled_by, thread));

    thread = start(waiter);
    pthread_kill(thread, SIGUSR1);
    pthread_join(thread, &result);
    printf("waiter: %d handled %d\n", (int)(long)result == EINTR, handled);

    pthread_mutex_lock(&lock);
    thread = start(locker);
    pthread_kill(thread, SIGUSR1);
    struct timespec moment = {0, 10000000};
    nanosleep(&moment, NULL);
    pthread_mutex_unlock(&lock);
    pthread_join(thread, &result);
    printf("locker: %ld handled %d\n", (long)result, handled);

    thread = start(cancelled);
    pthread_cancel(thread);
    pthread_join(thread, &result);
    printf("cancelled: %d\n", result == PTHREAD_CANCELED);

    thread = start(cancelled_running);
    pthread_cancel(thread);
    pthread_join(thread, &result);
    printf("cancelled running: %d\n", result == PTHREAD_CANCELED);

    // A process signal goes to a thread that does not block it.
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    thread = start(sleeper);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    kill(getpid(), SIGUSR1);
    pthread_join(thread, &result);
    printf("process signal: %d handled %d by it %d\n", (int)(long)result == EINTR, handled, pthread_equal(handled_by, thread));
    return 0;
}
