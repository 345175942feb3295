// flags: -fopenmp
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    int done = 0;
    omp_lock_t lock;
    omp_init_lock(&lock);
    #pragma omp parallel num_threads(3)
    for (int i = 0; i < 200; i++) {
        int taken = omp_test_lock(&lock);
        done++; // RACE done
        if (taken)
            omp_unset_lock(&lock);
    }
    omp_destroy_lock(&lock);
    printf("%d\n", done);
}
