// flags: -fopenmp
#include <stdio.h>
int main(void) {
    int bins[4] = {0}, largest = 0;
#pragma omp parallel for reduction(+ : bins[ : 4]) reduction(max : largest) num_threads(3)
    for (int i = 0; i < 100; i++) {
        bins[i % 4] += i;
        if (i > largest)
            largest = i;
    }
    printf("%d %d\n", bins[0] + bins[3], largest);
}
