// A variable that is declared volatile, reached by pointers that do not say
// so, all the time: no race. A race is now and then between.
// EXPECT: race tag=total
// ARGS: 4
#include "threads.h"

volatile long progress;
long total;

__attribute__((noipa)) static void report(long *place) { *place += 1; }

__attribute__((noinline)) static void add(void) {
  total += 2; // RACE total
}

static void *work(void *arg) {
  while (running())
    for (int i = 0; i < 1000; i++) {
      report((long *)&progress);
      if (i % 4 == 0)
        add();
    }
  return arg;
}

int main(int argc, char **argv) { return run_threads(argc, argv, 2, work); }
