// Blocks are used as far as malloc_usable_size says, which can be beyond what was asked for. What
// is beyond goes to the other thread with some other block: no race.
#include "two.h"
#include <malloc.h>
static void *worker(void *arg) {
    for (int i = 0; i < 40; i++)
        for (int power = 4; power < 12; power++) {
            char *block = aligned_alloc((size_t)1 << power, 100);
            char *other = aligned_alloc(64, 33);
            char *third = aligned_alloc(64, 128);
            memset(third, 1, malloc_usable_size(third));
            free(block);
            free(third);
            free(other);
        }
    return arg;
}
int main(void) {
    mallopt(M_ARENA_MAX, 1);
    run(worker, worker);
    puts("done");
    return 0;
}
