// flags: -fopenmp
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    int count = 0;
    #pragma omp parallel num_threads(2)
    {
        if (omp_get_thread_num() == 0) {
            #pragma omp atomic // RACE count
            count++; // RACE count
        } else {
            count += 2; // RACE count
        }
    }
    printf("%d\n", count);
}
