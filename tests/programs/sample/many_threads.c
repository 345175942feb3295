// 64 threads on fewer CPUs add to cells of a table without a lock, sampled with
// data breakpoints of each thread's own.
// EXPECT: race tag=cell
// ARGS: 4
// OPTIONS: --unprivileged
#include "threads.h"

long cells[16];

__attribute__((noinline)) static void add(unsigned cell, long what) {
  cells[cell] += what; // RACE cell
}

static void *work(void *arg) {
  unsigned long state = (unsigned long)arg;
  while (running())
    for (int i = 0; i < 1000; i++) {
      state = state * 6364136223846793005 + 1442695040888963407;
      add(state >> 60, i);
    }
  return arg;
}

int main(int argc, char **argv) { return run_threads(argc, argv, 64, work); }
