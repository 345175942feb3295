// A walk through frames of many shapes: recursion, alloca, realigned stacks,
// callbacks from the C library, tail calls, lazy binding, a signal handler.
#include <alloca.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

volatile int sink;

__attribute__((noinline)) int leaf(int value) { return value * 3 + sink; }

__attribute__((noinline)) int tail(int value) { return leaf(value + 1); }

__attribute__((noinline)) int recurse(int depth) {
    if (depth == 0)
        return leaf(depth);
    return recurse(depth - 1) + depth + sink;
}

__attribute__((noinline)) int dynamic(int size) {
    char *block = alloca(size);
    memset(block, size, size);
    return block[size / 2] + tail(size);
}

__attribute__((noinline)) int aligned(int value) {
    _Alignas(64) volatile int block[32];
    for (int i = 0; i < 4; i++)
        block[i] = leaf(value + i);
    return block[3] + block[0];
}

__attribute__((noinline)) int many(int a, int b, int c, int d, int e, int f, int g, int h) {
    int left = leaf(a) + leaf(b) + leaf(c) + leaf(d);
    return left + leaf(e) + leaf(f) + leaf(g) + leaf(h);
}

__attribute__((noinline)) int compare(const void *left, const void *right) {
    return *(const int *)left - *(const int *)right + leaf(0) * 0;
}

__attribute__((noinline)) void handler(int number) {
    sink = number;
    __asm__ volatile("int3");
}

__attribute__((noinline)) void interrupted(void) {
    raise(SIGUSR1);
    sink++;
}

__attribute__((noinline)) int work(void) {
    int numbers[8] = {5, 3, 8, 1, 9, 2, 7, 4};
    qsort(numbers, 8, sizeof numbers[0], compare);
    char text[64];
    snprintf(text, sizeof text, "%d %s", numbers[0], "words");
    return (int)strlen(text) + recurse(5) + dynamic(40) + aligned(2) +
           many(1, 2, 3, 4, 5, 6, 7, 8);
}

int main(int argc, char **argv) {
    (void)argv;
    signal(SIGUSR1, handler);
    sink = argc - 1;
    int total = work();
    interrupted();
    return total == 0;
}
