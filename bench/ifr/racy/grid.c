// A stencil whose threads do not wait for each other: the rows at the border
// and the residual race, the inner rows do not.
#include <pthread.h>
#include <stdio.h>
#define APART __attribute__((noinline))
enum { N = 256, ROUNDS = 2500 };
double grid[N][N], residual;
static APART double smooth(int row) {
    double change = 0;
    for (int c = 1; c < N - 1; c++) {
        double v = (grid[row - 1][c] + grid[row + 1][c] + grid[row][c - 1] + grid[row][c + 1]) / 4;
        change += v - grid[row][c];
        grid[row][c] = v;
    }
    return change;
}
static APART void add_residual(double v) { residual += v; }
static APART double read_residual(void) { return residual; }
static void *work(void *half) {
    int lo = half ? N / 2 : 1, hi = half ? N - 1 : N / 2;
    double seen = 0;
    for (int r = 0; r < ROUNDS; r++) {
        for (int row = lo; row < hi; row++) add_residual(smooth(row));
        seen += read_residual();
    }
    return seen > 1e300 ? half : 0;
}
int main(void) {
    pthread_t t;
    for (int c = 0; c < N; c++) grid[0][c] = grid[N - 1][c] = c;
    pthread_create(&t, 0, work, (void *)1);
    work(0);
    pthread_join(t, 0);
    printf("%d\n", grid[N / 2][N / 2] >= 0);
}
