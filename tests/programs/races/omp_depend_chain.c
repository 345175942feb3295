// flags: -fopenmp
#include <stdio.h>
int main(void) {
    int a = 0, b = 0, c = 0;
#pragma omp parallel num_threads(3)
#pragma omp single
    {
#pragma omp task depend(out : a) shared(a)
        a = 1;
#pragma omp task depend(in : a) depend(out : b) shared(a, b)
        b = a + 1;
#pragma omp task depend(in : a) depend(out : c) shared(a, c)
        c = a + 2;
#pragma omp task depend(inout : b) depend(in : c) shared(b, c)
        b += c;
#pragma omp taskwait
    }
    printf("%d %d %d\n", a, b, c);
}
