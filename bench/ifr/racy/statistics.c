// Work under a lock, statistics beside it without one (the shape of a server's
// counters): two threads, five racy variables, one safe table.
#include <pthread.h>
#include <stdio.h>
#define APART __attribute__((noinline))
enum { ROUNDS = 1500000, SIZE = 512 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long table[SIZE];
long hits, misses, bytes_in, last_key;
double average;
static APART int look(long key) {
    pthread_mutex_lock(&lock);
    int found = table[key % SIZE] == key;
    table[key % SIZE] = key;
    pthread_mutex_unlock(&lock);
    return found;
}
static APART void count_hit(void) { hits++; }
static APART void count_miss(void) { misses++; }
static APART void note_size(long n) { bytes_in += n; average = average * 0.99 + n * 0.01; }
static APART void note_key(long key) { last_key = key; }
static APART long recent(void) { return last_key; }
static void *work(void *seed) {
    unsigned long x = (unsigned long)seed; long sum = 0;
    for (int i = 0; i < ROUNDS; i++) {
        x = x * 6364136223846793005ul + 1442695040888963407ul;
        long key = (x >> 40) % (SIZE * 2) + 1;
        if (look(key)) count_hit(); else count_miss();
        note_size(key & 63);
        if (i % 3) note_key(key); else sum += recent();
    }
    return (void *)(sum & 1);
}
int main(void) {
    pthread_t t[2];
    for (long i = 0; i < 2; i++) pthread_create(&t[i], 0, work, (void *)(i + 1));
    for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
    printf("%d\n", hits + misses > 0);
}
