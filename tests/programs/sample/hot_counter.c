// A counter that two threads update without a lock, all the time.
// EXPECT: race tag=hot
// ARGS: 4
#include "threads.h"

long counter;

__attribute__((noinline)) static void add(void) {
  counter = counter * 3 + 1; // RACE hot
}

static void *work(void *arg) {
  while (running())
    for (int i = 0; i < 1000; i++)
      add();
  return arg;
}

int main(int argc, char **argv) { return run_threads(argc, argv, 2, work); }
