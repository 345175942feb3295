// flags: -fopenmp
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
static int last;
int main(void) {
    #pragma omp parallel num_threads(3)
    #pragma omp single
    {
        #pragma omp taskloop grainsize(4)
        for (int i = 0; i < 64; i++)
            last = i; // RACE last
        printf("%d\n", last);
    }
}
