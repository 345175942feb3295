// flags: -fopenmp
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    int longest = 0;
    #pragma omp parallel for num_threads(4)
    for (int i = 0; i < 200; i++) {
        #pragma omp critical
        if (i % 37 > longest)
            longest = i % 37;
    }
    printf("%d\n", longest);
}
