// flags: -fopenmp
#include <stdio.h>
int main(void) {
    int last = 0, sum = 0;
#pragma omp parallel for ordered schedule(dynamic, 1) num_threads(3)
    for (int i = 0; i < 12; i++) {
        int square = i * i;
#pragma omp ordered
        {
            sum += square;
            last = i;
        }
    }
    printf("%d %d\n", sum, last);
}
