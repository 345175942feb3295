// Products of matrices on the heap: accesses and nothing else.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { SIZE = 120 };
int first;

static void *work(void *number) {
    first = (int)(long)number; // the race; everything else comes after it
    double *a = malloc(SIZE * SIZE * sizeof *a), *b = malloc(SIZE * SIZE * sizeof *b);
    double *c = calloc(SIZE * SIZE, sizeof *c);
    for (int index = 0; index < SIZE * SIZE; index++) {
        a[index] = index;
        b[index] = SIZE - index;
    }
    for (int times = 0; times < 6; times++)
        for (int i = 0; i < SIZE; i++)
            for (int j = 0; j < SIZE; j++)
                for (int k = 0; k < SIZE; k++)
                    c[i * SIZE + j] += a[i * SIZE + k] * b[k * SIZE + j];
    free(a);
    free(b);
    free(c);
    return 0;
}

int main(void) {
    pthread_t one, two;
    pthread_create(&one, 0, work, (void *)1);
    pthread_create(&two, 0, work, (void *)2);
    pthread_join(one, 0);
    pthread_join(two, 0);
    printf("%d\n", first);
    return 0;
}
