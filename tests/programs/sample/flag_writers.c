// Two threads that write different bits of one word lose updates: not safe.
// EXPECT: race tag=bits not=disjoint-bits
// ARGS: 4
#include "threads.h"

unsigned flags;

__attribute__((noinline)) static void one(void) {
  flags ^= 1; // RACE bits
}

__attribute__((noinline)) static void other(void) {
  flags ^= 4; // RACE bits
}

static void *work(void *arg) {
  while (running())
    for (int i = 0; i < 1000; i++) {
      if (arg)
        one();
      else
        other();
    }
  return arg;
}

int main(int argc, char **argv) { return run_threads(argc, argv, 2, work); }
