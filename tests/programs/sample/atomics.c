// C11 atomics and volatile variables: plain moves in the binary, told apart by
// debug info. Silent.
// EXPECT: silent
// ARGS: 4
#include "threads.h"
#include <stdatomic.h>

atomic_long turn;
struct { atomic_int flag; long padding; } box;
volatile int noted;
long handed;

static void *work(void *arg) {
  long me = (long)arg;
  while (running())
    for (int i = 0; i < 100; i++) {
      if (atomic_load_explicit(&turn, memory_order_acquire) % 2 == me) {
        handed++;
        atomic_store_explicit(&turn, turn + 1, memory_order_release);
      }
      atomic_store_explicit(&box.flag, i, memory_order_relaxed);
      noted = i;
    }
  return arg;
}

int main(int argc, char **argv) { return run_threads(argc, argv, 2, work); }
