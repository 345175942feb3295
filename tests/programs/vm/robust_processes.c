// Robust mutexes in shared memory whose owner dies: by returning, by each kind
// of signal, killed by another process, with a waiter and without.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

struct shared {
    pthread_mutex_t mutex, second;
    volatile int value;
};

static struct shared *shared;

static void make(pthread_mutex_t *mutex) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(mutex, &attributes);
}

static const char *name(int error) { return error ? strerrorname_np(error) : "ok"; }

enum end { BY_EXIT, BY_KILL, BY_ABORT, BY_FAULT, BY_THREAD, BY_OTHER, BY_OTHER_IN_THREAD, ENDS };

static void *lock_and_stay(void *end) {
    pthread_mutex_lock(&shared->mutex);
    pthread_mutex_lock(&shared->second);
    shared->value++;
    if (*(enum end *)end == BY_THREAD) return NULL;
    for (;;) pause();
}

static void owner(enum end end, int ready) {
    pthread_t thread;
    if (end == BY_THREAD || end == BY_OTHER_IN_THREAD) {
        int before = shared->value;
        pthread_create(&thread, NULL, lock_and_stay, &end);
        if (end == BY_THREAD) pthread_join(thread, NULL);
        while (shared->value == before) usleep(100);
    } else {
        pthread_mutex_lock(&shared->mutex);
        pthread_mutex_lock(&shared->second);
        shared->value++;
    }
    write(ready, "r", 1);
    // Time for the other one to wait.
    usleep(20000);
    switch (end) {
    case BY_KILL: kill(getpid(), SIGKILL); break;
    case BY_ABORT: abort();
    case BY_FAULT: *(volatile int *)8 = 1; break;
    case BY_OTHER:
    case BY_OTHER_IN_THREAD: for (;;) pause();
    default: break;
    }
    _exit(0);
}

int main(void) {
    setvbuf(stdout, NULL, _IONBF, 0);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    make(&shared->mutex);
    make(&shared->second);
    for (enum end end = BY_EXIT; end < ENDS; end++) {
        int ready[2];
        char byte;
        int status;
        pipe(ready);
        pid_t pid = fork();
        if (pid == 0) owner(end, ready[1]);
        read(ready[0], &byte, 1);
        if (end >= BY_OTHER) {
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
        }
        int first = pthread_mutex_lock(&shared->mutex);
        printf("%d: lock %s value %d\n", end, name(first), shared->value);
        if (end < BY_OTHER) waitpid(pid, &status, 0);
        printf("  status %x\n", status);
        printf("  consistent %s\n", name(pthread_mutex_consistent(&shared->mutex)));
        printf("  unlock %s\n", name(pthread_mutex_unlock(&shared->mutex)));
        printf("  try %s\n", name(pthread_mutex_trylock(&shared->second)));
        pthread_mutex_unlock(&shared->second);
        // It was not made consistent.
        printf("  again %s\n", name(pthread_mutex_lock(&shared->second)));
        make(&shared->second);
        close(ready[0]);
        close(ready[1]);
    }
    printf("end\n");
    return 0;
}
