#include "two.h"
int count;
static void *worker(void *arg) {
    for (int i = 0; i < 200; i++)
        __sync_fetch_and_add(&count, 1);
    return arg;
}
int main(void) {
    run(worker, worker);
    printf("%d\n", count);
    return 0;
}
