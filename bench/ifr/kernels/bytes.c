// Run-length and histogram over bytes in two threads (the shape of a compressor).
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
enum { N = 1 << 23, ROUNDS = 4 };
static unsigned char *text;
struct result { long runs; long counts[256]; };
static void *scan(void *out) {
    struct result *r = out;
    unsigned char *p = text + (r->runs ? N / 2 : 0), *end = p + N / 2;
    r->runs = 0;
    for (int k = 0; k < ROUNDS; k++)
        for (unsigned char *q = p; q < end;) {
            unsigned char c = *q;
            while (q < end && *q == c) q++;
            r->runs++; r->counts[c]++;
        }
    return 0;
}
int main(void) {
    static struct result r[2]; pthread_t t; unsigned x = 7;
    text = malloc(N);
    for (int i = 0; i < N; i++) { if (i % 3 == 0) x = x * 1664525 + 1013904223; text[i] = x >> 24; }
    r[1].runs = 1;
    pthread_create(&t, 0, scan, &r[1]);
    scan(&r[0]);
    pthread_join(t, 0);
    printf("%ld %ld\n", r[0].runs + r[1].runs, r[0].counts[65] + r[1].counts[65]);
}
