// The kernel writes into a buffer on behalf of one thread (read(2)) while
// another reads it.
// EXPECT: race tag=buffer
// ARGS: 4
#include "threads.h"
#include <fcntl.h>

char buffer[64];
long sum;

__attribute__((noinline)) static void fill(int fd) {
  if (read(fd, buffer, sizeof buffer) < 0) // RACE buffer
    abort();
}

__attribute__((noinline)) static int look(void) { return buffer[8]; } // RACE buffer

static void *work(void *arg) {
  int fd = open("/dev/urandom", O_RDONLY);
  long own = 0;
  while (running())
    for (int i = 0; i < 100; i++) {
      if (arg)
        fill(fd);
      else
        for (int j = 0; j < 100; j++)
          own += look();
    }
  if (!arg)
    sum = own;
  close(fd);
  return arg;
}

int main(int argc, char **argv) { return run_threads(argc, argv, 2, work); }
