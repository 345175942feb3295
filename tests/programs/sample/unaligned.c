// An access that straddles two words, against a store to its last byte.
// EXPECT: race tag=straddle
// ARGS: 4
#include "threads.h"

struct __attribute__((packed)) packet {
  char kind;
  long value;
} packet;

__attribute__((noinline)) static long load(void) { return packet.value; } // RACE straddle

__attribute__((noinline)) static void store(char c) {
  ((char *)&packet)[8] = c; // RACE straddle
}

long sum;
static void *work(void *arg) {
  long own = 0;
  while (running())
    for (int i = 0; i < 1000; i++) {
      if (arg)
        store(i);
      else
        own += load();
    }
  if (!arg)
    sum = own;
  return arg;
}

int main(int argc, char **argv) { return run_threads(argc, argv, 2, work); }
