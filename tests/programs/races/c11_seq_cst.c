#include "two.h"
#include <stdatomic.h>
int payload;
atomic_int ready;
static void *writer(void *arg) {
    payload = 5;
    ready = 1;
    return arg;
}
static void *reader(void *arg) {
    while (!ready)
        sched_yield();
    printf("%d\n", payload);
    return arg;
}
int main(void) {
    run(reader, writer);
    return 0;
}
