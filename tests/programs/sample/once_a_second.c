// Most of the time the threads work under a lock; once a second each of them
// touches the same variable without it.
// EXPECT: race tag=cold
// ARGS: 40
#include "threads.h"

struct status {
  long beats, last;
} status;
long total;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

__attribute__((noinline)) static void heartbeat(long now) {
  status.last = now; // RACE cold
}

static void *work(void *arg) {
  double next = clock_now() + 1;
  while (running()) {
    for (int i = 0; i < 100; i++) {
      pthread_mutex_lock(&lock);
      total++;
      pthread_mutex_unlock(&lock);
    }
    if (clock_now() >= next) {
      heartbeat((long)next);
      next += 1;
    }
  }
  return arg;
}

int main(int argc, char **argv) { return run_threads(argc, argv, 2, work); }
