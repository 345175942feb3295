// A counter that goes up and down holds an object: no statistics.
// EXPECT: race tag=ref label=reference-count not=statistics-counter
// ARGS: 4
#include "threads.h"

struct object { int references; } object = {1};

__attribute__((noinline)) static void take(void) {
  object.references++; // RACE ref
}

__attribute__((noinline)) static void drop(void) {
  object.references--; // RACE ref
}

static void *work(void *arg) {
  while (running())
    for (int i = 0; i < 1000; i++) {
      take();
      drop();
    }
  return arg;
}

int main(int argc, char **argv) { return run_threads(argc, argv, 2, work); }
