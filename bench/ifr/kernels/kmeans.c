// k-means with a barrier per round and sums merged under a lock (the shape of
// streamcluster).
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
enum { POINTS = 60000, DIM = 8, K = 12, ROUNDS = 8 };
static float (*point)[DIM], centre[K][DIM];
static float sum[K][DIM]; static int members[K];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t meet;
static void *work(void *which) {
    int lo = which ? POINTS / 2 : 0, hi = which ? POINTS : POINTS / 2;
    for (int round = 0; round < ROUNDS; round++) {
        float mine[K][DIM] = { 0 }; int n[K] = { 0 };
        for (int p = lo; p < hi; p++) {
            int best = 0; float least = 1e30f;
            for (int k = 0; k < K; k++) {
                float d = 0;
                for (int i = 0; i < DIM; i++) { float x = point[p][i] - centre[k][i]; d += x * x; }
                if (d < least) { least = d; best = k; }
            }
            n[best]++;
            for (int i = 0; i < DIM; i++) mine[best][i] += point[p][i];
        }
        pthread_mutex_lock(&lock);
        for (int k = 0; k < K; k++) { members[k] += n[k]; for (int i = 0; i < DIM; i++) sum[k][i] += mine[k][i]; }
        pthread_mutex_unlock(&lock);
        if (pthread_barrier_wait(&meet) == PTHREAD_BARRIER_SERIAL_THREAD)
            for (int k = 0; k < K; k++) { for (int i = 0; i < DIM; i++) { if (members[k]) centre[k][i] = sum[k][i] / members[k]; sum[k][i] = 0; } members[k] = 0; }
        pthread_barrier_wait(&meet);
    }
    return 0;
}
int main(void) {
    pthread_t t; unsigned x = 3;
    point = malloc(sizeof *point * POINTS);
    for (int p = 0; p < POINTS; p++) for (int i = 0; i < DIM; i++) { x = x * 1664525 + 1013904223; point[p][i] = (x >> 16) % 1000; }
    for (int k = 0; k < K; k++) for (int i = 0; i < DIM; i++) centre[k][i] = point[k * 17][i];
    pthread_barrier_init(&meet, 0, 2);
    pthread_create(&t, 0, work, (void *)1);
    work(0);
    pthread_join(t, 0);
    printf("%.0f\n", centre[0][0]);
}
