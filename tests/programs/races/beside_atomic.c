// A plain change on a line that also has an atomic operation is plain.
#include "two.h"
#include <stdatomic.h>
#include <stdlib.h>
struct counts { long plain; atomic_long exact; };
static struct counts *counts;
static void *count(void *arg) {
    for (int i = 0; i < 200; i++) { counts->plain += 1; atomic_fetch_add_explicit(&counts->exact, 1, memory_order_relaxed); } // RACE plain
    return arg;
}
int main(void) {
    counts = calloc(1, sizeof *counts);
    run(count, count);
    printf("%ld\n", counts->plain);
    return 0;
}
