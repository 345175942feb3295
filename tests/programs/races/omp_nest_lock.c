// flags: -fopenmp
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
static omp_nest_lock_t lock;
static int total;
static void add(int depth) {
    omp_set_nest_lock(&lock);
    total++;
    if (depth)
        add(depth - 1);
    omp_unset_nest_lock(&lock);
}
int main(void) {
    omp_init_nest_lock(&lock);
    #pragma omp parallel num_threads(3)
    add(4);
    omp_destroy_nest_lock(&lock);
    printf("%d\n", total);
}
