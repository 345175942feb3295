// flags: -fopenmp
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
static int a[64];
int main(void) {
    #pragma omp parallel num_threads(3)
    #pragma omp single
    {
        #pragma omp taskloop grainsize(4)
        for (int i = 0; i < 64; i++)
            a[i] = i;
        printf("%d\n", a[63]);
    }
}
