// A counter that only ever goes up: labelled, and last.
// EXPECT: race tag=stat label=statistics-counter
// ARGS: 4
#include "threads.h"

struct { long requests, errors; } stats;

__attribute__((noinline)) static void count(void) {
  stats.requests++; // RACE stat
}

static void *work(void *arg) {
  while (running())
    for (int i = 0; i < 1000; i++)
      count();
  return arg;
}

int main(int argc, char **argv) { return run_threads(argc, argv, 2, work); }
