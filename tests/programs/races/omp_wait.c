// flags: -fopenmp
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
static int a[100], last;
int main(void) {
    #pragma omp parallel num_threads(4)
    {
        #pragma omp for
        for (int i = 0; i < 100; i++)
            a[i] = i * 3;
        #pragma omp single
        last = a[99] + a[1];
    }
    printf("%d\n", last);
}
