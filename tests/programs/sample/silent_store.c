// A store that never changes the value: repeated reads cannot see it, data
// breakpoints do.
// EXPECT: race tag=silent
// ARGS: 4
#include "threads.h"

int ready;
int seen;

__attribute__((noinline)) static void store(void) {
  ready = 1; // RACE silent
}

__attribute__((noinline)) static int load(void) { return ready; } // RACE silent

static void *work(void *arg) {
  int sum = 0;
  while (running())
    for (int i = 0; i < 1000; i++) {
      if (arg)
        store();
      else
        sum += load();
    }
  if (!arg)
    seen = sum;
  return arg;
}

int main(int argc, char **argv) {
  ready = 1;
  return run_threads(argc, argv, 2, work);
}
