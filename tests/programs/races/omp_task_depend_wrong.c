// flags: -fopenmp
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
static int value, other;
int main(void) {
    #pragma omp parallel num_threads(3)
    #pragma omp single
    {
        #pragma omp task depend(out : value)
        value = 1; // RACE value
        #pragma omp task depend(out : other)
        value = 7; // RACE value
    }
    printf("%d\n", value + other);
}
