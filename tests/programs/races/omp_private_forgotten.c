// flags: -fopenmp
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
static int a[200];
int main(void) {
    int square;
    #pragma omp parallel for num_threads(4)
    for (int i = 0; i < 200; i++) {
        square = i * i; // RACE square
        a[i] = square;  // RACE square
    }
    printf("%d\n", a[7]);
}
