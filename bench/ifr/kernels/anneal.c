// Random swaps in a netlist under atomic ownership of elements (PARSEC's canneal).
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
enum { N = 40000, FAN = 6, MOVES = 400000 };
static struct element { atomic_int owned; int x, y; int peer[FAN]; } *net;
static int take(struct element *e) { int no = 0; return atomic_compare_exchange_strong(&e->owned, &no, 1); }
static void give(struct element *e) { atomic_store_explicit(&e->owned, 0, memory_order_release); }
static void *work(void *seed) {
    unsigned long s = (unsigned long)seed; long gain = 0;
    for (int m = 0; m < MOVES; m++) {
        s = s * 6364136223846793005ul + 1442695040888963407ul;
        struct element *a = &net[(s >> 20) % N], *b = &net[(s >> 40) % N];
        if (a == b || !take(a)) continue;
        if (!take(b)) { give(a); continue; }
        int before = 0, after = 0;
        for (int i = 0; i < FAN; i++) {
            before += abs(a->x - a->peer[i]) + abs(b->x - b->peer[i]);
            after += abs(b->x - a->peer[i]) + abs(a->x - b->peer[i]);
        }
        if (after < before) { int x = a->x, y = a->y; a->x = b->x; a->y = b->y; b->x = x; b->y = y; gain += before - after; }
        give(b); give(a);
    }
    return (void *)gain;
}
int main(void) {
    pthread_t t; void *other; unsigned x = 5;
    net = calloc(N, sizeof *net);
    for (int i = 0; i < N; i++) { net[i].x = i % 500; net[i].y = i / 500; for (int k = 0; k < FAN; k++) { x = x * 1664525 + 1013904223; net[i].peer[k] = (x >> 12) % 500; } }
    pthread_create(&t, 0, work, (void *)11);
    long mine = (long)work((void *)7);
    pthread_join(t, &other);
    printf("%d\n", mine + (long)other > 0);
}
