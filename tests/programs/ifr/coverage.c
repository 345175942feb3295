// SILENT
// FLAGS --coverage
// The counters of --coverage are the compiler's.
#include <pthread.h>
static long sums[2][64];
static void *work(void *p) {
    long *sum = p;
    for (int i = 0; i < 300000; i++)
        *sum += i & 1 ? i : -i;
    return 0;
}
int main(void) {
    pthread_t t;
    pthread_create(&t, 0, work, sums[0]);
    work(sums[1]);
    pthread_join(t, 0);
    return sums[0][0] != sums[1][0];
}
