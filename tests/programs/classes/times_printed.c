// The two orders take different times and lay out the heap in different ways, and
// the program prints both. The race has no other effect: times, process ids and
// addresses are other ones in every run.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

int last;

void *set(void *number) {
    last = (int)(long)number;              // RACE last: k-witness-harmless
    return 0;
}

int main(void) {
    pthread_t one, two;
    struct timespec begin, end;
    struct timeval day;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    pthread_create(&one, 0, set, (void *)1);
    pthread_create(&two, 0, set, (void *)2);
    pthread_join(one, 0);
    pthread_join(two, 0);
    for (volatile int i = 0; i < last * 10000; i++)
        ;
    char *before = malloc(last * 5000), *block = malloc(100);
    clock_gettime(CLOCK_MONOTONIC, &end);
    gettimeofday(&day, 0);
    printf("process %d: %ld.%09ld s, block at %p\n", (int)getpid(),
           (long)(end.tv_sec - begin.tv_sec), end.tv_nsec, (void *)block);
    printf("[%ld.%06ld] done\n", (long)day.tv_sec, (long)day.tv_usec);
    free(before);
    free(block);
    return 0;
}
