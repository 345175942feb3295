// flags: -fopenmp
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
static int leaf;
int main(void) {
    #pragma omp parallel num_threads(3)
    #pragma omp single
    {
        #pragma omp task
        {
            #pragma omp task
            leaf = 3; // RACE leaf
        }
        #pragma omp taskwait
        printf("%d\n", leaf); // RACE leaf
    }
}
