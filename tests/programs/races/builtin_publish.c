#include "two.h"
static int data, ready;
static void *produce(void *x) {
    data = 7;
    __atomic_store_n(&ready, 1, __ATOMIC_RELEASE);
    return x;
}
static void *consume(void *x) {
    while (!__atomic_load_n(&ready, __ATOMIC_ACQUIRE))
        ;
    printf("%d\n", data);
    return x;
}
int main(void) { run(produce, consume); }
