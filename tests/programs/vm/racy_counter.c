// Two threads add to a counter without a lock: each schedule has its own sum.
// identity: output depends on the schedule
#include <pthread.h>
#include <stdio.h>

static volatile long counter;

static void *add(void *unused) {
    (void)unused;
    for (int i = 0; i < 20000; i++)
        counter++;
    return NULL;
}

int main(void) {
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, add, NULL);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    printf("counter %ld\n", counter);
    return 0;
}
