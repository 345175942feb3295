#include "two.h"
static int lock, total;
static void *add(void *x) {
    for (int i = 0; i < 50; i++) {
        while (__sync_lock_test_and_set(&lock, 1))
            ;
        total++;
        __sync_lock_release(&lock);
    }
    return x;
}
int main(void) {
    run(add, add);
    printf("%d\n", total);
}
