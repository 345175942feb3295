// SILENT
// Two threads with a field of every structure each, side by side in one granule,
// and a column of a matrix each: walks by rows too short to be joined.
#include <pthread.h>
#include <stdio.h>
enum { N = 3000, WIDE = 33 };
static struct { short own[2]; char pad[3]; } list[N];
static float matrix[400][WIDE];
static void *work(void *p) {
    long me = p != 0;
    for (int round = 0; round < 200; round++) {
        for (int i = 0; i < N; i++) list[i].own[me]++;
        for (int i = 0; i < 400; i++) matrix[i][me * 3 + round % 2] += 1;
    }
    return p;
}
int main(void) {
    pthread_t t;
    pthread_create(&t, 0, work, &t);
    work(0);
    pthread_join(t, 0);
    long sum = 0;
    for (int i = 0; i < N; i++) sum += list[i].own[0] + list[i].own[1];
    printf("%ld %g\n", sum, matrix[3][4]);
    return sum != 2L * N * 200;
}
