// flags: -fopenmp
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
static int a[300], last;
int main(void) {
    #pragma omp parallel for schedule(dynamic, 3) num_threads(4)
    for (int i = 0; i < 300; i++) {
        a[i] = i;
        last = a[i]; // RACE last
    }
    printf("%d\n", last);
}
