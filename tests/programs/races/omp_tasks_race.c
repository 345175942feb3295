// flags: -fopenmp
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
static int both;
int main(void) {
    #pragma omp parallel num_threads(3)
    #pragma omp single
    {
        #pragma omp task
        both = 1; // RACE both
        #pragma omp task
        both = 2; // RACE both
    }
    printf("%d\n", both);
}
