// flags: -fopenmp
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    int last = 0;
    #pragma omp parallel for lastprivate(last) num_threads(4)
    for (int i = 0; i < 100; i++)
        last = i;
    printf("%d\n", last);
}
