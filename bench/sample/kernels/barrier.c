// A stencil with a barrier after every step: barrier THREADS STEPS.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { CELLS = 1 << 16 };
static double field[2][CELLS + 2];
static pthread_barrier_t barrier;
static int threads;
static long steps;

static void *work(void *arg) {
  long me = (long)arg, from = me * CELLS / threads + 1,
       to = (me + 1) * CELLS / threads + 1;
  for (long step = 0; step < steps; step++) {
    double *now = field[step & 1], *next = field[~step & 1];
    for (long i = from; i < to; i++)
      next[i] = 0.25 * now[i - 1] + 0.5 * now[i] + 0.25 * now[i + 1];
    pthread_barrier_wait(&barrier);
  }
  return 0;
}

int main(int argc, char **argv) {
  threads = argc > 1 ? atoi(argv[1]) : 2;
  steps = argc > 2 ? atol(argv[2]) : 60000;
  field[0][CELLS / 2] = 1;
  pthread_barrier_init(&barrier, 0, threads);
  pthread_t *all = calloc(threads, sizeof *all);
  for (long i = 0; i < threads; i++)
    pthread_create(&all[i], 0, work, (void *)i);
  for (int i = 0; i < threads; i++)
    pthread_join(all[i], 0);
  free(all);
  return 0;
}
