// Merge sort, halves in two threads (the shape of freqmine's data handling).
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
enum { N = 3000000 };
static int data[N], spare[N];
static void sort(int *v, int *t, int n) {
    if (n < 16) {
        for (int i = 1; i < n; i++) { int x = v[i], j = i; while (j && v[j - 1] > x) { v[j] = v[j - 1]; j--; } v[j] = x; }
        return;
    }
    int m = n / 2, i = 0, j = m, k = 0;
    sort(v, t, m); sort(v + m, t + m, n - m);
    while (i < m && j < n) t[k++] = v[i] <= v[j] ? v[i++] : v[j++];
    while (i < m) t[k++] = v[i++];
    while (j < n) t[k++] = v[j++];
    memcpy(v, t, n * sizeof *v);
}
static void *half(void *x) { sort(data + N / 2, spare + N / 2, N - N / 2); return x; }
int main(void) {
    unsigned x = 1; pthread_t t;
    for (int i = 0; i < N; i++) { x = x * 1664525 + 1013904223; data[i] = x >> 2; }
    pthread_create(&t, 0, half, 0);
    sort(data, spare, N / 2);
    pthread_join(t, 0);
    int i = 0, j = N / 2, k = 0;
    while (i < N / 2 && j < N) spare[k++] = data[i] <= data[j] ? data[i++] : data[j++];
    while (i < N / 2) spare[k++] = data[i++];
    while (j < N) spare[k++] = data[j++];
    printf("%d %d\n", spare[0], spare[N / 2]);
}
