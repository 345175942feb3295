// Black-Scholes over an array of structures (PARSEC's blackscholes).
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
enum { N = 200000, ROUNDS = 6 };
struct option { float s, k, r, v, t; int put; float price; };
static struct option *list;
static float cdf(float x) { return 0.5f * erfcf(-x * 0.70710678f); }
static void price(struct option *o) {
    float d1 = (logf(o->s / o->k) + (o->r + o->v * o->v / 2) * o->t) / (o->v * sqrtf(o->t));
    float d2 = d1 - o->v * sqrtf(o->t), e = o->k * expf(-o->r * o->t);
    o->price = o->put ? e * cdf(-d2) - o->s * cdf(-d1) : o->s * cdf(d1) - e * cdf(d2);
}
static void *work(void *which) {
    int lo = which ? N / 2 : 0, hi = which ? N : N / 2;
    for (int r = 0; r < ROUNDS; r++) for (int i = lo; i < hi; i++) price(&list[i]);
    return 0;
}
int main(void) {
    pthread_t t; double sum = 0;
    list = malloc(N * sizeof *list);
    for (int i = 0; i < N; i++) list[i] = (struct option){ 40 + i % 50, 50, 0.05f, 0.2f + i % 7 * 0.05f, 0.5f + i % 3, i & 1, 0 };
    pthread_create(&t, 0, work, (void *)1);
    work(0);
    pthread_join(t, 0);
    for (int i = 0; i < N; i++) sum += list[i].price;
    printf("%.3f\n", sum);
}
