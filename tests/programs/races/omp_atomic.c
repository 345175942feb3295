// flags: -fopenmp
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    int count = 0;
    #pragma omp parallel for num_threads(4)
    for (int i = 0; i < 200; i++) {
        #pragma omp atomic
        count++;
    }
    printf("%d\n", count);
}
