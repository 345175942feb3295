#include "two.h"
_Thread_local long counter;
long results[2];
static void *worker(void *arg) {
    for (int i = 0; i < 100; i++)
        counter++;
    results[(long)arg] = counter;
    return arg;
}
int main(void) {
    for (int round = 0; round < 3; round++)
        run_with(worker, (void *)0, worker, (void *)1);
    printf("%ld\n", results[0] + results[1]);
    return 0;
}
