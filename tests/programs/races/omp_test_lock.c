// flags: -fopenmp
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    int done = 0;
    omp_lock_t lock;
    omp_init_lock(&lock);
    #pragma omp parallel num_threads(3)
    {
        while (!omp_test_lock(&lock))
            ;
        done++;
        omp_unset_lock(&lock);
    }
    omp_destroy_lock(&lock);
    printf("%d\n", done);
}
