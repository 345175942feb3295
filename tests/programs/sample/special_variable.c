// A race on a variable that the list file names.
// EXPECT: race tag=clock label=special-variable
// OPTIONS: --special-variables special_variables.txt
// ARGS: 4
#include "threads.h"

long coarse_clock;
long sum;

__attribute__((noinline)) static void tick(long now) {
  coarse_clock = now; // RACE clock
}

__attribute__((noinline)) static long look(void) { return coarse_clock; } // RACE clock

static void *work(void *arg) {
  long own = 0;
  while (running())
    for (int i = 0; i < 1000; i++) {
      if (arg)
        tick(i);
      else
        own += look();
    }
  if (!arg)
    sum = own;
  return arg;
}

int main(int argc, char **argv) { return run_threads(argc, argv, 2, work); }
