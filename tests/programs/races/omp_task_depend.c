// flags: -fopenmp
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
static int value;
int main(void) {
    #pragma omp parallel num_threads(3)
    #pragma omp single
    {
        #pragma omp task depend(out : value)
        value = 1;
        #pragma omp task depend(inout : value)
        value *= 7;
        #pragma omp task depend(in : value)
        printf("%d\n", value);
    }
}
