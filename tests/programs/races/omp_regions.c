// flags: -fopenmp
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
static int a[100];
int main(void) {
    for (int round = 0; round < 3; round++) {
        #pragma omp parallel for num_threads(4)
        for (int i = 0; i < 100; i++)
            a[i] += a[i] + round;
        a[0] = a[99];
    }
    printf("%d\n", a[0]);
}
