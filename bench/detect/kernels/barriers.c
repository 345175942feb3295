// A stencil over two arrays, a barrier after every sweep.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
enum { CELLS = 1 << 15, SWEEPS = 3000 };
static double grid[2][CELLS];
static pthread_barrier_t barrier;
static long threads;
static void *work(void *number) {
    long share = CELLS / threads, from = (long)number * share, to = from + share;
    for (int sweep = 0; sweep < SWEEPS; sweep++) {
        double *old = grid[sweep & 1], *new = grid[!(sweep & 1)];
        for (long i = from; i < to; i++)
            new[i] = (old[i] + old[i ? i - 1 : i] + old[i + 1 < CELLS ? i + 1 : i]) / 3;
        pthread_barrier_wait(&barrier);
    }
    return 0;
}
int main(int count, char **arguments) {
    threads = count > 1 ? atoi(arguments[1]) : 2;
    pthread_t all[128];
    for (long i = 0; i < CELLS; i++)
        grid[0][i] = i % 17;
    pthread_barrier_init(&barrier, 0, threads);
    for (long i = 0; i < threads; i++)
        pthread_create(&all[i], 0, work, (void *)i);
    for (long i = 0; i < threads; i++)
        pthread_join(all[i], 0);
    printf("%f\n", grid[0][100]);
}
