// Reads a number that nobody writes, in a loop that counts, and ends. WELL
#include <stdio.h>

static volatile long rounds = 120000000;

int main(void)
{
    long sum = 0;
    for (long i = 0; i < rounds; i++)
        sum += i & 1;
    printf("%ld\n", sum);
    return 0;
}
