// Something to do that has nothing to do with the others: `work(n)` takes about
// n microseconds, times HUNT_WORK if that is set.
#pragma once
#include <stdlib.h>

static volatile unsigned long worked;

static inline void work(unsigned n) {
    const char *factor = getenv("HUNT_WORK");
    unsigned long steps = n * 100ul * (factor ? strtoul(factor, 0, 10) : 1);
    unsigned long value = n;
    for (unsigned long i = 0; i < steps; i++)
        value = value * 2862933555777941757ul + 3037000493ul;
    if (value == 1)
        worked = value;
}
