// As times_printed.c, but a value that the race decides is printed beside the time.
#include <pthread.h>
#include <stdio.h>
#include <time.h>

int last;

void *set(void *number) {
    last = (int)(long)number;              // RACE last: output-differs output
    return 0;
}

int main(void) {
    pthread_t one, two;
    struct timespec now;
    pthread_create(&one, 0, set, (void *)1);
    pthread_create(&two, 0, set, (void *)2);
    pthread_join(one, 0);
    pthread_join(two, 0);
    for (volatile int i = 0; i < last * 10000; i++)
        ;
    clock_gettime(CLOCK_REALTIME, &now);
    printf("[%ld.%09ld] last %d\n", (long)now.tv_sec, now.tv_nsec, last);
    return 0;
}
