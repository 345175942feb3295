// Four kinds of work that notice a lost or repeated instruction. Not a case of
// its own: `tests/holder_killed.rs` kills the holder while this runs.
//
// `checked KIND` says `ready`, works until SIGTERM, and ends with 1
// as soon as a result is not what it was before anybody sampled.
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { THREADS = 2, WORDS = 2048, BLOCK = 4096, BLOCKS = 8 };

static volatile sig_atomic_t ending;

static void end(int signal) {
  (void)signal;
  ending = 1;
}

static void wrong(const char *what) {
  fprintf(stderr, "wrong: %s\n", what);
  _exit(1);
}

// A chain: each step depends on the one before.
static unsigned long words[WORDS];

__attribute__((noinline)) static unsigned long chain(void) {
  unsigned long sum = 1;
  for (int i = 0; i < WORDS; i++)
    sum = (sum * 31 + words[i]) ^ (sum >> 7);
  return sum;
}

static void *add(void *arg) {
  unsigned long expected = *(unsigned long *)arg;
  while (!ending)
    if (chain() != expected)
      wrong("sum");
  return 0;
}

// Three counters that belong together, and each thread's share of them.
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
  long once, twice, less;
} counts;
static long shares[THREADS * 8];

static void *count(void *arg) {
  long *share = arg;
  while (!ending) {
    pthread_mutex_lock(&lock);
    if (counts.twice != 2 * counts.once || counts.less != -counts.once)
      wrong("counters under a lock");
    counts.once++;
    counts.twice += 2;
    counts.less--;
    pthread_mutex_unlock(&lock);
    ++*share;
  }
  return 0;
}

// One thread packs runs of bytes into blocks, the other unpacks and compares
// checksums.
struct block {
  unsigned char data[2 * BLOCK];
  int length;
  unsigned sum;
};
static struct block blocks[BLOCKS];
static unsigned head, tail;
static pthread_mutex_t queue = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turned = PTHREAD_COND_INITIALIZER;

static unsigned adler(const unsigned char *data, int length) {
  unsigned a = 1, b = 0;
  for (int i = 0; i < length; i++) {
    a = (a + data[i]) % 65521;
    b = (b + a) % 65521;
  }
  return b << 16 | a;
}

static void pack(struct block *block, const unsigned char *plain) {
  block->length = 0;
  for (int i = 0, run; i < BLOCK; i += run) {
    for (run = 1; i + run < BLOCK && run < 255 && plain[i + run] == plain[i];)
      run++;
    block->data[block->length++] = (unsigned char)run;
    block->data[block->length++] = plain[i];
  }
  block->sum = adler(plain, BLOCK);
}

static void unpack(const struct block *block) {
  unsigned char plain[BLOCK + 256];
  int length = 0;
  for (int i = 0; i < block->length; i += 2) {
    if (length > BLOCK)
      break;
    memset(plain + length, block->data[i + 1], block->data[i]);
    length += block->data[i];
  }
  if (length != BLOCK || adler(plain, length) != block->sum)
    wrong("block of the pipeline");
}

static void *produce(void *arg) {
  unsigned state = 1;
  unsigned char plain[BLOCK];
  while (!ending) {
    for (int i = 0; i < BLOCK; i++) {
      if (!(state >> 20 & 7))
        state = state * 1664525 + 1013904223;
      state += 1u << 20;
      plain[i] = (unsigned char)(state >> 24);
    }
    pthread_mutex_lock(&queue);
    while (head - tail == BLOCKS && !ending)
      pthread_cond_wait(&turned, &queue);
    unsigned at = head % BLOCKS, full = head - tail == BLOCKS;
    pthread_mutex_unlock(&queue);
    if (full)
      break;
    pack(&blocks[at], plain);
    pthread_mutex_lock(&queue);
    head++;
    pthread_cond_signal(&turned);
    pthread_mutex_unlock(&queue);
  }
  return arg;
}

static void *consume(void *arg) {
  while (!ending) {
    pthread_mutex_lock(&queue);
    if (head == tail) {
      pthread_mutex_unlock(&queue);
      usleep(10);
      continue;
    }
    unsigned at = tail % BLOCKS;
    pthread_mutex_unlock(&queue);
    unpack(&blocks[at]);
    pthread_mutex_lock(&queue);
    tail++;
    pthread_cond_signal(&turned);
    pthread_mutex_unlock(&queue);
  }
  pthread_mutex_lock(&queue);
  pthread_cond_signal(&turned);
  pthread_mutex_unlock(&queue);
  return arg;
}

// Products of small matrices in vector registers.
typedef int vector __attribute__((vector_size(16)));
static vector rows[256], columns[256];

__attribute__((noinline)) static unsigned products(void) {
  vector sum = {0};
  for (int i = 0; i < 256; i++) {
    vector row = rows[i], turned = __builtin_shuffle(row, (vector){1, 2, 3, 0});
    sum += row * columns[i];
    sum ^= turned * columns[255 - i];
  }
  return (unsigned)(sum[0] ^ sum[1] * 3 ^ sum[2] * 5 ^ sum[3] * 7);
}

static void *multiply(void *arg) {
  unsigned expected = (unsigned)*(unsigned long *)arg;
  while (!ending)
    if (products() != expected)
      wrong("products of vectors");
  return 0;
}

int main(int argc, char **argv) {
  const char *kind = argc > 1 ? argv[1] : "sum";
  unsigned long expected;
  pthread_t threads[THREADS];
  signal(SIGTERM, end);
  for (int i = 0; i < WORDS; i++)
    words[i] = (unsigned long)i * 0x9e3779b97f4a7c15;
  for (int i = 0; i < 256; i++) {
    rows[i] = (vector){i, i * i, 7 - i, i ^ 85};
    columns[i] = (vector){i + 3, i * 5, -i, i << 3};
  }
  int vectors = !strcmp(kind, "vectors"), locks = !strcmp(kind, "locks");
  int pipeline = !strcmp(kind, "pipeline");
  expected = vectors ? products() : chain();
  for (int i = 0; i < THREADS; i++) {
    void *(*work)(void *) = vectors    ? multiply
                            : locks    ? count
                            : pipeline ? (i ? consume : produce)
                                       : add;
    void *arg = locks ? (void *)&shares[i * 8] : &expected;
    if (pthread_create(&threads[i], 0, work, arg))
      return 2;
  }
  puts("ready");
  fflush(stdout);
  for (int i = 0; i < THREADS; i++)
    pthread_join(threads[i], 0);
  if (shares[0] + shares[8] != counts.once)
    wrong("shares of the counters");
  return 0;
}
