// A block's last bytes, beyond what was asked for, belong to it as well: the next
// owner of the memory does not race with the last one.
#include "two.h"
#include <malloc.h>
static void *user(void *unused) {
    for (int i = 0; i < 40; i++) {
        char *block = malloc(128);
        memset(block, i, malloc_usable_size(block));
        free(block);
    }
    return unused;
}
int main(void) {
    mallopt(M_ARENA_MAX, 1);
    run(user, user);
}
