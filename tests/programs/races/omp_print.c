// flags: -fopenmp
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    #pragma omp parallel for num_threads(3)
    for (int i = 0; i < 12; i++)
        printf("%d\n", i);
}
