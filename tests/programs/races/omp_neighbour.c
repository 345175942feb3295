// flags: -fopenmp
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
static int a[400];
int main(void) {
    #pragma omp parallel for num_threads(4)
    for (int i = 0; i < 399; i++)
        a[i] = a[i + 1] + 1; // RACE next
    printf("%d\n", a[7]);
}
