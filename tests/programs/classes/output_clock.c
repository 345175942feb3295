// A clock that one thread sets and another prints (paper 003, figure 14 c).
#include <pthread.h>
#include <stdio.h>

volatile unsigned current_time = 100;

void *clock_handler(void *unused) {
    current_time = 101;                    // RACE time: output-differs output
    return 0;
}

void *statistics(void *unused) {
    printf("uptime %u\n", current_time);   // RACE time: output-differs output
    return 0;
}

int main(void) {
    pthread_t one, two;
    pthread_create(&one, 0, clock_handler, 0);
    pthread_create(&two, 0, statistics, 0);
    pthread_join(one, 0);
    pthread_join(two, 0);
    return 0;
}
