// Matrix multiplication, rows split between two threads.
#include <pthread.h>
#include <stdio.h>
enum { N = 700 };
static double a[N][N], b[N][N], c[N][N];
static void *rows(void *which) {
    int lo = which ? N / 2 : 0, hi = which ? N : N / 2;
    for (int i = lo; i < hi; i++)
        for (int k = 0; k < N; k++)
            for (int j = 0; j < N; j++) c[i][j] += a[i][k] * b[k][j];
    return 0;
}
int main(void) {
    pthread_t t;
    for (int i = 0; i < N; i++) for (int j = 0; j < N; j++) { a[i][j] = i + j; b[i][j] = i - j; }
    pthread_create(&t, 0, rows, (void *)1);
    rows(0);
    pthread_join(t, 0);
    printf("%g\n", c[N / 2][N / 3]);
}
