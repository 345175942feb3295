// flags: -fopenmp
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
static int ready;
int main(void) {
    int data = 0;
    #pragma omp parallel num_threads(2)
    {
        if (omp_get_thread_num() == 0) {
            data = 42;
            #pragma omp flush
            #pragma omp atomic write
            ready = 1;
        } else {
            int seen = 0;
            while (!seen) {
                #pragma omp atomic read
                seen = ready;
            }
            #pragma omp flush
            printf("%d\n", data);
        }
    }
}
