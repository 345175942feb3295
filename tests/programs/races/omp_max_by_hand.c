// flags: -fopenmp
#include <stdio.h>
int main(void) {
    int largest = 0;
#pragma omp parallel for num_threads(3)
    for (int i = 0; i < 90; i++)
        if (i > largest) // RACE largest
            largest = i; // RACE largest
    printf("%d\n", largest > 0);
}
