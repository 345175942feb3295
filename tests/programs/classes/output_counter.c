// A lost update that is printed.
#include <pthread.h>
#include <stdio.h>

int total;

void *count(void *unused) {
    for (int i = 0; i < 20; i++)
        total++;                           // RACE total: output-differs output
    return 0;
}

int main(void) {
    pthread_t one, two;
    pthread_create(&one, 0, count, 0);
    pthread_create(&two, 0, count, 0);
    pthread_join(one, 0);
    pthread_join(two, 0);
    printf("total %d\n", total);
    return 0;
}
