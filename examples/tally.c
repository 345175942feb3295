// Two workers count votes. `votes` is protected by a lock, `total` is not.
#include <pthread.h>
#include <stdio.h>

struct tally {
    pthread_mutex_t lock;
    long votes[4];
    long total;
};

static struct tally tally = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void count(int party) {
    pthread_mutex_lock(&tally.lock);
    tally.votes[party]++;
    pthread_mutex_unlock(&tally.lock);
    tally.total++;
}

static void *worker(void *seed) {
    unsigned state = (unsigned)(long)seed;
    for (int i = 0; i < 2000; i++) {
        state = state * 1103515245 + 12345;
        count(state >> 16 & 3);
    }
    return NULL;
}

int main(void) {
    pthread_t one, two;
    pthread_create(&one, NULL, worker, (void *)1);
    pthread_create(&two, NULL, worker, (void *)2);
    pthread_join(one, NULL);
    pthread_join(two, NULL);
    long sum = 0;
    for (int party = 0; party < 4; party++) sum += tally.votes[party];
    printf("%ld votes, %ld in total\n", sum, tally.total);
    return 0;
}
