// flags: -fopenmp
// The parts of the sum are added by compare-and-swap, which begins with a load.
#include <stdio.h>
int main(void) {
    double sum = 0, parts[1000];
#pragma omp parallel for num_threads(4)
    for (int i = 0; i < 1000; i++)
        parts[i] = i;
#pragma omp parallel for reduction(+ : sum) num_threads(4)
    for (int i = 0; i < 1000; i++)
        sum += parts[i];
    printf("%f\n", sum);
}
