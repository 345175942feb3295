// Computes for half a second or more, in two threads, with a race between them.
#include <pthread.h>
#include <stdio.h>
static unsigned long shared;
static void *work(void *argument) {
    unsigned long sum = (unsigned long)argument;
    for (long i = 0; i < 250000000; i++)
        sum = sum * 6364136223846793005ul + 1442695040888963407ul;
    shared += sum & 1;
    return (void *)sum;
}
int main(void) {
    pthread_t thread;
    pthread_create(&thread, 0, work, (void *)1);
    work((void *)2);
    pthread_join(thread, 0);
    printf("%lu\n", shared < 3 ? 1ul : 0ul);
    return 0;
}
