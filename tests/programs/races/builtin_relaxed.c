#include "two.h"
static int data, ready;
static void *produce(void *x) {
    data = 7; // RACE data
    __atomic_store_n(&ready, 1, __ATOMIC_RELAXED);
    return x;
}
static void *consume(void *x) {
    while (!__atomic_load_n(&ready, __ATOMIC_RELAXED))
        ;
    printf("%d\n", data); // RACE data
    return x;
}
int main(void) { run(produce, consume); }
