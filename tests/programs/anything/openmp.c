// Parallel loops, tasks, critical sections and barriers on libgomp.
#include <math.h>
#include <omp.h>
#include <stdio.h>
static long fib(int n) {
    if (n < 2)
        return n;
    long a, b;
#pragma omp task shared(a) if (n > 12)
    a = fib(n - 1);
    b = fib(n - 2);
#pragma omp taskwait
    return a + b;
}
int main(void) {
    static double grid[200][200], next[200][200];
    for (int i = 0; i < 200; i++)
        grid[i][0] = i;
    for (int step = 0; step < 40; step++) {
#pragma omp parallel for schedule(dynamic, 8)
        for (int i = 1; i < 199; i++)
            for (int j = 1; j < 199; j++)
                next[i][j] = (grid[i - 1][j] + grid[i + 1][j] + grid[i][j - 1] + grid[i][j + 1]) / 4;
#pragma omp parallel for
        for (int i = 1; i < 199; i++)
            for (int j = 1; j < 199; j++)
                grid[i][j] = next[i][j];
    }
    double sum = 0;
    long count = 0, threads = 0;
#pragma omp parallel reduction(+ : count)
    {
#pragma omp atomic
        threads++;
#pragma omp barrier
        for (int k = 0; k < 50; k++) {
#pragma omp critical
            count++;
        }
    }
    for (int i = 0; i < 200; i++)
        for (int j = 0; j < 200; j++)
            sum += grid[i][j];
    long f;
#pragma omp parallel
#pragma omp single
    f = fib(18);
    printf("%.9f %ld %ld %ld\n", sum, count, threads, f);
    return 0;
}
