// Waits for a time to come, by two clocks that the loop forgets again. WELL
#include <stdio.h>
#include <time.h>
#include <x86intrin.h>

int main(void)
{
    time_t end = time(NULL) + 1;
    while (time(NULL) < end) { }
    unsigned long long ticks = __rdtsc() + 100000000ull;
    while (__rdtsc() < ticks) { }
    puts("done");
    return 0;
}
