// A counter that 64 threads on fewer CPUs update without a lock, sampled with
// data breakpoints of each thread's own.
// EXPECT: race tag=hot
// ARGS: 4
// OPTIONS: --unprivileged
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

int main(int argc, char **argv) { return run_threads(argc, argv, 64, work); }
