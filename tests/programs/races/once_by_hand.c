#include "two.h"
int *table;
static void *worker(void *arg) {
    if (!table) { // RACE table
        int *fresh = malloc(16 * sizeof *fresh);
        for (int i = 0; i < 16; i++)
            fresh[i] = i; // RACE filled
        table = fresh; // RACE table
    }
    return (void *)(long)table[3]; // RACE table RACE filled
}
int main(void) {
    run(worker, worker);
    puts("done");
    return 0;
}
