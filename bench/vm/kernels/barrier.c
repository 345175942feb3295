// A stencil: threads sweep their rows and meet at a barrier.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 512, COLUMNS = 512 };
static double grid[2][ROWS][COLUMNS];
static pthread_barrier_t barrier;
static int threads, steps;

static void *work(void *number) {
    int first = 1 + (ROWS - 2) * (long)number / threads;
    int last = 1 + (ROWS - 2) * ((long)number + 1) / threads;
    for (int step = 0; step < steps; step++) {
        double (*from)[COLUMNS] = grid[step & 1], (*to)[COLUMNS] = grid[~step & 1];
        for (int y = first; y < last; y++)
            for (int x = 1; x < COLUMNS - 1; x++)
                to[y][x] = 0.25 * (from[y - 1][x] + from[y + 1][x] + from[y][x - 1] + from[y][x + 1]);
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

int main(int argc, char **argv) {
    threads = argc > 1 ? atoi(argv[1]) : 2;
    steps = argc > 2 ? atoi(argv[2]) : 2000;
    pthread_barrier_init(&barrier, NULL, threads);
    for (int x = 0; x < COLUMNS; x++) grid[0][0][x] = grid[1][0][x] = x;
    pthread_t thread[64];
    for (long i = 0; i < threads; i++) pthread_create(&thread[i], NULL, work, (void *)i);
    for (int i = 0; i < threads; i++) pthread_join(thread[i], NULL);
    double sum = 0;
    for (int y = 0; y < ROWS; y++) for (int x = 0; x < COLUMNS; x++) sum += grid[0][y][x];
    printf("%.6f\n", sum);
    return 0;
}
