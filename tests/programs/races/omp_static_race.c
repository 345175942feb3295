// flags: -fopenmp -static
#include <stdio.h>
int main(void) {
    int total = 0;
#pragma omp parallel for num_threads(4)
    for (int i = 0; i < 64; i++)
        total += i; // RACE total
    printf("%d\n", total);
}
