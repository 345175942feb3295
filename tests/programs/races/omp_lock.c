// flags: -fopenmp
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    int total = 0;
    omp_lock_t lock;
    omp_init_lock(&lock);
    #pragma omp parallel for num_threads(4)
    for (int i = 0; i < 100; i++) {
        omp_set_lock(&lock);
        total += i;
        omp_unset_lock(&lock);
    }
    omp_destroy_lock(&lock);
    printf("%d\n", total);
}
