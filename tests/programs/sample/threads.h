// Runs threads for as many seconds as the first argument says.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static double end_of_run;

static double clock_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

static int running(void) { return clock_now() < end_of_run; }

static void set_end(int argc, char **argv) {
  end_of_run = clock_now() + (argc > 1 ? atof(argv[1]) : 3);
}

__attribute__((unused)) static int run_threads(int argc, char **argv, int count,
                                               void *(*work)(void *)) {
  set_end(argc, argv);
  pthread_t threads[64];
  for (long i = 0; i < count; i++)
    if (pthread_create(&threads[i], 0, work, (void *)i))
      return 1;
  for (int i = 0; i < count; i++)
    pthread_join(threads[i], 0);
  puts("ok");
  return 0;
}
