// flags: -fopenmp
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
static int position, order[60];
int main(void) {
    #pragma omp parallel for ordered schedule(dynamic) num_threads(3)
    for (int i = 0; i < 60; i++) {
        #pragma omp ordered
        order[position++] = i;
    }
    printf("%d\n", order[59]);
}
