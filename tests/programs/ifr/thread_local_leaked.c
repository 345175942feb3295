// RACE ?
// A thread-local variable whose address another thread is given.
#include <pthread.h>
#include <unistd.h>
_Thread_local long counter;
static long *leaked;
static pthread_barrier_t meet;
static void *owner(void *p) {
    leaked = &counter;
    pthread_barrier_wait(&meet);
    counter = 5;
    usleep(300000);
    return p;
}
int main(void) {
    pthread_t t;
    pthread_barrier_init(&meet, 0, 2);
    pthread_create(&t, 0, owner, 0);
    pthread_barrier_wait(&meet);
    usleep(100000);
    *leaked = 6;
    pthread_join(t, 0);
    return 0;
}
