// Threads that write their part of an array and read the others' behind a
// barrier: silent.
// EXPECT: silent
// ARGS: 4
#include "threads.h"

enum { THREADS = 3, CELLS = 64 };
static pthread_barrier_t barrier;
static long cells[THREADS][CELLS];
static int go_on = 1;
long sums[THREADS];

static void *work(void *arg) {
  long me = (long)arg;
  for (;;) {
    for (int i = 0; i < CELLS; i++)
      cells[me][i] = i + me;
    if (me == 0)
      go_on = running();
    pthread_barrier_wait(&barrier);
    long sum = 0;
    for (int t = 0; t < THREADS; t++)
      for (int i = 0; i < CELLS; i++)
        sum += cells[t][i];
    sums[me] = sum;
    int again = go_on;
    pthread_barrier_wait(&barrier);
    if (!again)
      return arg;
  }
}

int main(int argc, char **argv) {
  pthread_barrier_init(&barrier, 0, THREADS);
  return run_threads(argc, argv, THREADS, work);
}
