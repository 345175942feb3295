// Jacobi iterations on a grid with a barrier per step (the shape of fluidanimate).
#include <pthread.h>
#include <stdio.h>
enum { N = 1000, STEPS = 120 };
static double a[N][N], b[N][N];
static pthread_barrier_t meet;
static void step(double (*to)[N], double (*from)[N], int lo, int hi) {
    for (int i = lo; i < hi; i++)
        for (int j = 1; j < N - 1; j++)
            to[i][j] = 0.25 * (from[i - 1][j] + from[i + 1][j] + from[i][j - 1] + from[i][j + 1]);
}
static void *work(void *which) {
    int lo = which ? N / 2 : 1, hi = which ? N - 1 : N / 2;
    for (int s = 0; s < STEPS; s++) {
        step(s & 1 ? a : b, s & 1 ? b : a, lo, hi);
        pthread_barrier_wait(&meet);
    }
    return 0;
}
int main(void) {
    pthread_t t;
    for (int i = 0; i < N; i++) a[i][0] = b[i][0] = a[0][i] = b[0][i] = 1;
    pthread_barrier_init(&meet, 0, 2);
    pthread_create(&t, 0, work, (void *)1);
    work(0);
    pthread_join(t, 0);
    printf("%.12f\n", a[N / 3][N / 3]);
}
