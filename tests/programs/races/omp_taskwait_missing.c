// flags: -fopenmp
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
static int half;
int main(void) {
    #pragma omp parallel num_threads(3)
    #pragma omp single
    {
        #pragma omp task
        half = 21; // RACE half
        printf("%d\n", half); // RACE half
    }
}
