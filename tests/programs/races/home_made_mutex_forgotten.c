// The same lock, made of a bit test, but one access is outside.
#include "two.h"
static volatile unsigned word;
static long guarded;
static int test_and_set(volatile unsigned *word) {
    unsigned char was;
    __asm__ volatile("lock btsl $0, %1; setc %0" : "=q"(was), "+m"(*word) : : "memory", "cc");
    return was;
}
static void *count(void *arg) {
    for (int i = 0; i < 100; i++) {
        while (test_and_set(&word))
            sched_yield();
        guarded++; // RACE guarded
        __asm__ volatile("" : : : "memory");
        word = 0;
        __asm__ volatile("" : : : "memory");
        guarded++; // RACE guarded
    }
    return arg;
}
int main(void) {
    run(count, count);
    printf("%d\n", guarded > 0);
    return 0;
}
