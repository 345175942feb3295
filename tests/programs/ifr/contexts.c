// SILENT
// Coroutines on stacks of their own that change threads under a lock.
#include <pthread.h>
#include <stdio.h>
#include <ucontext.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ucontext_t inside, outside;
static char stack[1 << 16];
static long steps, cells[64];
static void coroutine(void) {
    for (;;) { for (int i = 0; i < 64; i++) cells[i] += i; steps++; swapcontext(&inside, &outside); }
}
static void *work(void *p) {
    for (int i = 0; i < 5000; i++) {
        pthread_mutex_lock(&lock);
        swapcontext(&outside, &inside);
        pthread_mutex_unlock(&lock);
    }
    return p;
}
int main(void) {
    getcontext(&inside);
    inside.uc_stack.ss_sp = stack;
    inside.uc_stack.ss_size = sizeof stack;
    makecontext(&inside, coroutine, 0);
    pthread_t t[2];
    for (int i = 0; i < 2; i++) pthread_create(&t[i], 0, work, 0);
    for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
    printf("%ld\n", steps);
    return steps != 10000;
}
