// flags: -fopenmp
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
static int count[8];
int main(void) {
    #pragma omp parallel num_threads(3)
    #pragma omp single
    for (int i = 0; i < 40; i++) {
        #pragma omp task
        count[omp_get_thread_num()]++;
    }
    printf("%d\n", count[0] + count[1] + count[2]);
}
