// flags: -fopenmp
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    int one = 0, other = 0;
    #pragma omp parallel sections num_threads(2)
    {
        #pragma omp section
        one = 1;
        #pragma omp section
        other = 2;
    }
    printf("%d\n", one + other);
}
