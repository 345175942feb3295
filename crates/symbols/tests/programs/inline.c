// Inlined calls, two deep, and code that no inlining touches.
#include <stdio.h>

volatile long total;

static inline __attribute__((always_inline)) void bump(long by) {
    total += by; // bump
}

static inline __attribute__((always_inline)) void twice(long by) {
    bump(by);     // first bump
    bump(by + 1); // second bump
}

__attribute__((noinline)) void worker(long rounds) {
    for (long i = 0; i < rounds; i++)
        twice(i); // call of twice
}

int main(int argc, char **argv) {
    (void)argv;
    worker(argc); // call of worker
    printf("%ld\n", total);
    return 0;
}
