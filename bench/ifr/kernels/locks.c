// A hash map with one lock per bucket, two threads: short critical sections,
// pointer chasing, allocation (the shape of dedup).
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
enum { BUCKETS = 1024, KEYS = 20000, ROUNDS = 900000 };
struct node { long key, count; struct node *next; };
static struct bucket { pthread_mutex_t lock; struct node *first; } table[BUCKETS];
static void add(long key) {
    struct bucket *b = &table[key % BUCKETS];
    pthread_mutex_lock(&b->lock);
    struct node *n = b->first;
    while (n && n->key != key) n = n->next;
    if (!n) { n = malloc(sizeof *n); n->key = key; n->count = 0; n->next = b->first; b->first = n; }
    n->count++;
    pthread_mutex_unlock(&b->lock);
}
static void *work(void *seed) {
    unsigned long x = (unsigned long)seed;
    for (int i = 0; i < ROUNDS; i++) { x = x * 6364136223846793005ul + 1; add((x >> 33) % KEYS); }
    return 0;
}
int main(void) {
    pthread_t t[2]; long sum = 0;
    for (int i = 0; i < BUCKETS; i++) pthread_mutex_init(&table[i].lock, 0);
    for (long i = 0; i < 2; i++) pthread_create(&t[i], 0, work, (void *)(i + 1));
    for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
    for (int i = 0; i < BUCKETS; i++) for (struct node *n = table[i].first; n; n = n->next) sum += n->count;
    printf("%ld\n", sum);
}
