// The release is on the line, but of another variable than is waited for.
// MISSED at stripped: a flag that is only checked.
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
static int flag, other, data, seen;
static void *writer(void *unused) {
    data = 1;                                                                                          // RACE data
    __atomic_store_n(&other, 1, __ATOMIC_RELEASE); __atomic_store_n(&flag, 1, __ATOMIC_RELAXED);
    return unused;
}
int main(void) {
    pthread_t thread;
    pthread_create(&thread, 0, writer, 0);
    while (!__atomic_load_n(&flag, __ATOMIC_ACQUIRE))
        sched_yield();
    seen = data; // RACE data
    pthread_join(thread, 0);
    printf("%d\n", seen);
}
