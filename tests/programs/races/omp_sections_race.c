// flags: -fopenmp
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
static volatile int shared;
static void work(int value) {
    for (int i = 0; i < 3000; i++)
        shared += value; // RACE shared
}
int main(void) {
    #pragma omp parallel sections num_threads(2)
    {
        #pragma omp section
        work(1);
        #pragma omp section
        work(2);
    }
    printf("%d\n", shared);
}
