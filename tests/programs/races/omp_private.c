// flags: -fopenmp
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
static int a[200];
int main(void) {
    int square;
    #pragma omp parallel for num_threads(4) private(square)
    for (int i = 0; i < 200; i++) {
        square = i * i;
        a[i] = square;
    }
    printf("%d\n", a[7]);
}
