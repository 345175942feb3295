// Works for a while and comes to its end by itself.
#include <stdio.h>

static __attribute__((noinline)) unsigned work(unsigned depth) {
    volatile unsigned sum = depth;
    if (depth)
        return work(depth - 1) + sum;
    for (unsigned i = 0; i < 600000000; i++)
        sum += i;
    return sum;
}

int main(void) {
    printf("%u\n", work(50));
    return 0;
}
