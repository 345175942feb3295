// Who is told to end the barrier does so while the other may still be leaving.
#include "two.h"
static pthread_barrier_t barrier;
static void *pass(void *x) {
    if (pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD) // RACE barrier
        pthread_barrier_destroy(&barrier); // RACE barrier
    return x;
}
int main(void) {
    pthread_barrier_init(&barrier, 0, 2);
    run(pass, pass);
    puts("done");
}
