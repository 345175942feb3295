// Twelve planted races in code that runs at very different rates, for the
// curve of races found against overhead: races SECONDS.
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

static long cells[12][8];
static double end_of_run;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

#define SITE(N)                                                                \
  __attribute__((noinline)) static void site##N(long v) {                      \
    cells[N][0] = cells[N][0] * 3 + v;                                         \
  }
SITE(0) SITE(1) SITE(2) SITE(3) SITE(4) SITE(5)
SITE(6) SITE(7) SITE(8) SITE(9) SITE(10) SITE(11)
typedef void (*site)(long);
static site sites[] = {site0, site1, site2, site3, site4,  site5,
                       site6, site7, site8, site9, site10, site11};

static void *work(void *arg) {
  unsigned long state = (unsigned long)arg + 1;
  while (now() < end_of_run)
    for (int i = 0; i < 100; i++) {
      volatile long pad = 0;
      for (int j = 0; j < 200; j++)
        pad += j;
      state = state * 6364136223846793005UL + 1442695040888963407UL;
      // Site n runs with probability 2^-n.
      int n = __builtin_ctzl((state >> 20) | (1UL << 11));
      sites[n](i);
    }
  return arg;
}

int main(int argc, char **argv) {
  end_of_run = now() + (argc > 1 ? atof(argv[1]) : 10);
  pthread_t other;
  pthread_create(&other, 0, work, (void *)1);
  work(0);
  pthread_join(other, 0);
  return 0;
}
