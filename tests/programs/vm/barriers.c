// Phases between barriers; one thread per phase is the serial one.
// identity: output as natively
#include <pthread.h>
#include <stdio.h>

enum { THREADS = 3, PHASES = 20 };
static pthread_barrier_t barrier;
static long cells[THREADS];
static int serial;

static void *work(void *argument) {
    long me = (long)argument;
    for (int phase = 0; phase < PHASES; phase++) {
        long left = cells[(me + 1) % THREADS];
        pthread_barrier_wait(&barrier);
        cells[me] = left + me + phase;
        if (pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD)
            serial++;
    }
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (long i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, (void *)i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    printf("%ld %ld %ld, serial %d\n", cells[0], cells[1], cells[2], serial);
    return 0;
}
