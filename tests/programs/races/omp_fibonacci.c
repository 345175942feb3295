// flags: -fopenmp
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
static long fibonacci(int n) {
    long one, other;
    if (n < 2)
        return n;
    #pragma omp task shared(one)
    one = fibonacci(n - 1);
    #pragma omp task shared(other)
    other = fibonacci(n - 2);
    #pragma omp taskwait
    return one + other;
}
int main(void) {
    long result;
    #pragma omp parallel num_threads(3)
    #pragma omp single
    result = fibonacci(9);
    printf("%ld\n", result);
}
