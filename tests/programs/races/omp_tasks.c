// flags: -fopenmp
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
static int left, right;
int main(void) {
    #pragma omp parallel num_threads(3)
    #pragma omp single
    {
        #pragma omp task
        left = 1;
        #pragma omp task
        right = 2;
        #pragma omp taskwait
        printf("%d\n", left + right);
    }
}
