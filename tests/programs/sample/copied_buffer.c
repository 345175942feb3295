// The racing accesses are made by the C library on the program's behalf.
// EXPECT: race tag=copy
// ARGS: 4
#include "threads.h"
#include <string.h>

char shared[256];

__attribute__((noinline)) static void put(const char *from, size_t size) {
  memcpy(shared, from, size); // RACE copy
}

__attribute__((noinline)) static void get(char *to, size_t size) {
  memcpy(to, shared, size); // RACE copy
}

static void *work(void *arg) {
  char own[256];
  volatile size_t size = 200;
  memset(own, (int)(long)arg, sizeof own);
  while (running())
    for (int i = 0; i < 1000; i++) {
      if (arg)
        put(own, size); // RACE copy
      else
        get(own, size); // RACE copy
    }
  return arg;
}

int main(int argc, char **argv) { return run_threads(argc, argv, 2, work); }
