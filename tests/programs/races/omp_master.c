// flags: -fopenmp
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    int start = 0, seen[4];
    #pragma omp parallel num_threads(4)
    {
        #pragma omp master
        start = 5;
        #pragma omp barrier
        seen[omp_get_thread_num()] = start;
    }
    printf("%d\n", seen[3]);
}
