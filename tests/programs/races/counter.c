#include "two.h"
long counter;
static void *worker(void *arg) {
    for (int i = 0; i < 500; i++)
        counter++; // RACE counter
    return arg;
}
int main(void) {
    run(worker, worker);
    printf("%ld\n", counter);
    return 0;
}
