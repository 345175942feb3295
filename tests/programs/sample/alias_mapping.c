// One thread writes through another mapping of the same memory: data
// breakpoints go by address and cannot see it, repeated reads do. The writer
// stays unknown.
// EXPECT: race tag=alias unknown label=unknown-writer
// ARGS: 4
#define _GNU_SOURCE
#include "threads.h"
#include <sys/mman.h>

static long *one, *other;
long sum;

__attribute__((noinline)) static void store(long value) { *other = value; }

__attribute__((noinline)) static long load(void) { return *one; } // RACE alias

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

int main(int argc, char **argv) {
  int fd = memfd_create("alias", 0);
  if (ftruncate(fd, 4096))
    return 1;
  one = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  other = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return run_threads(argc, argv, 2, work);
}
