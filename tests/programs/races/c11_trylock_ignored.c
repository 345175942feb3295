#include <stdio.h>
#include <threads.h>
static mtx_t lock;
static int value;
static int add(void *x) {
    for (int i = 0; i < 200; i++) {
        int taken = mtx_trylock(&lock) == thrd_success;
        value++; // RACE value
        if (taken)
            mtx_unlock(&lock);
    }
    return 0;
}
int main(void) {
    thrd_t one, two;
    mtx_init(&lock, mtx_plain);
    thrd_create(&one, add, 0);
    thrd_create(&two, add, 0);
    thrd_join(one, 0);
    thrd_join(two, 0);
    printf("%d\n", value);
}
