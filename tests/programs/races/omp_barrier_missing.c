// flags: -fopenmp
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    int left[4] = {0}, sum[4] = {0};
    #pragma omp parallel num_threads(4)
    {
        int me = omp_get_thread_num();
        left[me] = me + 1; // RACE left
        for (int i = 0; i < 4; i++)
            sum[me] += left[i]; // RACE left
    }
    printf("%d %d\n", sum[0], sum[3]);
}
