// Lock-heavy: threads update buckets of a table, each under its lock. A fixed
// amount of work: locks THREADS OPERATIONS [own]. With `own` each thread keeps
// to its share of the buckets. Without, the threads take cache lines from each
// other all the time, and one that runs alone is several times as fast.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { BUCKETS = 256 };
static struct {
  pthread_mutex_t lock;
  long values[8];
} table[BUCKETS];
static long operations;
static int buckets = BUCKETS;

static void *work(void *arg) {
  unsigned long state = (unsigned long)arg + 1;
  int first = buckets == BUCKETS ? 0 : (long)arg * buckets;
  for (long i = 0; i < operations; i++) {
    state = state * 6364136223846793005UL + 1442695040888963407UL;
    int bucket = first + (state >> 33) % buckets;
    pthread_mutex_lock(&table[bucket].lock);
    for (int j = 0; j < 8; j++)
      table[bucket].values[j] += (state >> j) & 1;
    pthread_mutex_unlock(&table[bucket].lock);
  }
  return 0;
}

int main(int argc, char **argv) {
  int threads = argc > 1 ? atoi(argv[1]) : 2;
  operations = (argc > 2 ? atol(argv[2]) : 40000000) / threads;
  if (argc > 3)
    buckets = BUCKETS / threads;
  pthread_t *all = calloc(threads, sizeof *all);
  for (int i = 0; i < BUCKETS; i++)
    pthread_mutex_init(&table[i].lock, 0);
  for (long i = 0; i < threads; i++)
    pthread_create(&all[i], 0, work, (void *)i);
  for (int i = 0; i < threads; i++)
    pthread_join(all[i], 0);
  free(all);
  return 0;
}
