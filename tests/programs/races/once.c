#include "two.h"
int *table;
pthread_once_t control = PTHREAD_ONCE_INIT;
static void fill(void) {
    table = malloc(16 * sizeof *table);
    for (int i = 0; i < 16; i++)
        table[i] = i;
}
static void *worker(void *arg) {
    long sum = 0;
    for (int round = 0; round < 10; round++) {
        pthread_once(&control, fill);
        for (int i = 0; i < 16; i++)
            sum += table[i];
    }
    return (void *)sum;
}
int main(void) {
    run(worker, worker);
    printf("%d\n", table[15]);
    free(table);
    return 0;
}
