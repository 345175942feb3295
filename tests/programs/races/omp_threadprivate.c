// flags: -fopenmp
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
static int mine;
#pragma omp threadprivate(mine)
int main(void) {
    int total = 0;
    #pragma omp parallel num_threads(4) reduction(+ : total)
    {
        for (int i = 0; i < 50; i++)
            mine++;
        total += mine;
    }
    printf("%d\n", total);
}
