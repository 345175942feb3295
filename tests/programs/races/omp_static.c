// flags: -fopenmp -static
#include <omp.h>
#include <stdio.h>
static int results[64], total, largest;
int main(void) {
#pragma omp parallel num_threads(4)
    {
#pragma omp for
        for (int i = 0; i < 64; i++)
            results[i] = i;
#pragma omp single
        total = results[63];
#pragma omp critical
        largest += total;
    }
#pragma omp parallel for num_threads(4)
    for (int i = 0; i < 64; i++)
        results[i] += largest;
    printf("%d\n", results[5]);
}
