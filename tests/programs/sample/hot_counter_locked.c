// The same with a lock: silent.
// EXPECT: silent
// ARGS: 4
#include "threads.h"

long counter;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

__attribute__((noinline)) static void add(void) {
  pthread_mutex_lock(&lock);
  counter = counter * 3 + 1;
  pthread_mutex_unlock(&lock);
}

static void *work(void *arg) {
  while (running())
    for (int i = 0; i < 1000; i++)
      add();
  return arg;
}

int main(int argc, char **argv) { return run_threads(argc, argv, 2, work); }
