#include "two.h"
static pthread_barrier_t barrier;
static int a, b;
static void *left(void *x) {
    a = 1;
    pthread_barrier_wait(&barrier);
    return x + b;
}
static void *right(void *x) {
    b = 1;
    pthread_barrier_wait(&barrier);
    return x + a;
}
int main(void) {
    for (int i = 0; i < 3; i++) {
        pthread_barrier_init(&barrier, 0, 2);
        run(left, right);
        pthread_barrier_destroy(&barrier);
        a = b = 0;
    }
    puts("done");
}
