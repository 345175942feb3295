// The consumer may see the item of the round before, which is as good as the
// new one; only before the last round the old ones are thrown away. So of all
// occurrences of the race the last one does harm.
#include <pthread.h>
#include <stdio.h>

#define ROUNDS 24
int texts[ROUNDS];
int *items[ROUNDS];
int newest;
long sum;
pthread_barrier_t round_begins;

void *producer(void *unused) {
    for (int i = 1; i < ROUNDS; i++) {
        pthread_barrier_wait(&round_begins);
        newest = i;                        // RACE newest: spec-violated crash
    }
    return 0;
}

void *consumer(void *unused) {
    for (int i = 1; i < ROUNDS; i++) {
        if (i == ROUNDS - 1)
            for (int old = 0; old < i; old++)
                items[old] = 0;
        pthread_barrier_wait(&round_begins);
        for (volatile int work = 0; work < 1000; work++)
            ;
        sum += *items[newest];             // RACE newest: spec-violated crash
    }
    return 0;
}

int main(void) {
    pthread_t one, two;
    for (int i = 0; i < ROUNDS; i++) {
        texts[i] = 1;
        items[i] = &texts[i];
    }
    pthread_barrier_init(&round_begins, 0, 2);
    pthread_create(&one, 0, producer, 0);
    pthread_create(&two, 0, consumer, 0);
    pthread_join(one, 0);
    pthread_join(two, 0);
    printf("%ld\n", sum);
    return 0;
}
