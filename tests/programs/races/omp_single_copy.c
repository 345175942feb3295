// flags: -fopenmp
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    int seen[4], start;
    #pragma omp parallel num_threads(4) private(start)
    {
        #pragma omp single copyprivate(start)
        start = 11;
        seen[omp_get_thread_num()] = start;
    }
    printf("%d\n", seen[3]);
}
