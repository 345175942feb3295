// flags: -fopenmp
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
static int a[400];
int main(void) {
    int sum = 0;
    #pragma omp parallel for num_threads(4)
    for (int i = 0; i < 400; i++)
        sum += a[i] + i; // RACE sum
    printf("%d\n", sum);
}
