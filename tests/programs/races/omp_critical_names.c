// flags: -fopenmp
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    int total = 0;
    #pragma omp parallel num_threads(2)
    {
        if (omp_get_thread_num() == 0) {
            #pragma omp critical(one)
            total += 1; // RACE total
        } else {
            #pragma omp critical(other)
            total += 2; // RACE total
        }
    }
    printf("%d\n", total);
}
