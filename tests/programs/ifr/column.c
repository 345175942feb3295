// RACE list
// One thread writes a field of every structure that the other reads.
#include <pthread.h>
#include <stdio.h>
enum { N = 4000 };
struct { int key; char name[24]; int uses; } list[N];
static void *work(void *p) {
    long sum = 0;
    for (int round = 0; round < 3000; round++) {
        if (p) for (int i = 0; i < N; i++) list[i].uses = round;
        else for (int i = 0; i < N; i++) sum += list[i].uses;
        __asm__ volatile("" : : : "memory");
    }
    return (void *)sum;
}
int main(void) {
    pthread_t t; void *sum;
    pthread_create(&t, 0, work, &t);
    sum = work(0);
    pthread_join(t, 0);
    printf("%d\n", sum != 0);
    return 0;
}
