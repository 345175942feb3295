// One thread tests one bit of a word in which another sets another bit: safe,
// labelled.
// EXPECT: race tag=bits label=disjoint-bits
// ARGS: 4
#include "threads.h"

unsigned flags = 1;
long seen;

__attribute__((noinline)) static int test(void) {
  return (flags & 1) != 0; // RACE bits
}

__attribute__((noinline)) static void flip(void) {
  flags ^= 4; // RACE bits
}

static void *work(void *arg) {
  long own = 0;
  while (running())
    for (int i = 0; i < 1000; i++) {
      if (arg)
        flip();
      else if (test())
        own++;
    }
  if (!arg)
    seen = own;
  return arg;
}

int main(int argc, char **argv) { return run_threads(argc, argv, 2, work); }
