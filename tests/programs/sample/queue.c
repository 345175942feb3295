// A bounded queue with a lock and two conditions: silent.
// EXPECT: silent
// ARGS: 4
#include "threads.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t not_empty = PTHREAD_COND_INITIALIZER;
static pthread_cond_t not_full = PTHREAD_COND_INITIALIZER;
static long *slots[16];
static int head, tail, closed;
long sum;

static void put(long *item) {
  pthread_mutex_lock(&lock);
  while (head - tail == 16)
    pthread_cond_wait(&not_full, &lock);
  slots[head++ % 16] = item;
  pthread_cond_signal(&not_empty);
  pthread_mutex_unlock(&lock);
}

static long *get(void) {
  pthread_mutex_lock(&lock);
  while (head == tail && !closed)
    pthread_cond_wait(&not_empty, &lock);
  long *item = head == tail ? 0 : slots[tail++ % 16];
  pthread_cond_signal(&not_full);
  pthread_mutex_unlock(&lock);
  return item;
}

static void *work(void *arg) {
  if (arg) {
    while (running()) {
      long *item = malloc(sizeof *item);
      *item = 1;
      put(item);
    }
    pthread_mutex_lock(&lock);
    closed = 1;
    pthread_cond_broadcast(&not_empty);
    pthread_mutex_unlock(&lock);
  } else {
    long *item;
    while ((item = get())) {
      sum += *item;
      free(item);
    }
  }
  return arg;
}

int main(int argc, char **argv) { return run_threads(argc, argv, 2, work); }
