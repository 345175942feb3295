// Clustering of points: would another centre be cheaper? Two barriers for each
// candidate, at which threads spin on a plain word that counts their rounds,
// then try a lock until they have it, look again under it, and sleep at last.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { POINTS = 8192, DIMENSIONS = 32, CANDIDATES = 300, PATIENCE = 350000 };
static float points[POINTS][DIMENSIONS], cost[POINTS];
static int centre[POINTS];
static double saved[128];
static long threads;

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t opened;
    int inside;
    volatile int arriving;
} barrier = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 1};

static void spin_while(int phase) {
    volatile unsigned long long rounds = 0;
    pthread_mutex_unlock(&barrier.mutex);
    while (barrier.arriving == phase && rounds < PATIENCE)
        rounds++;
    while (pthread_mutex_trylock(&barrier.mutex))
        ;
    while (barrier.arriving == phase)
        pthread_cond_wait(&barrier.opened, &barrier.mutex);
}

static void wait_for_all(void) {
    pthread_mutex_lock(&barrier.mutex);
    // Some have not left the round before.
    while (!barrier.arriving)
        spin_while(0);
    if (++barrier.inside < threads)
        spin_while(1);
    else {
        barrier.arriving = 0;
        pthread_cond_broadcast(&barrier.opened);
    }
    if (--barrier.inside == 0) {
        barrier.arriving = 1;
        pthread_cond_broadcast(&barrier.opened);
    }
    pthread_mutex_unlock(&barrier.mutex);
}

static float distance(const float *one, const float *other) {
    float sum = 0;
    for (int i = 0; i < DIMENSIONS; i++)
        sum += (one[i] - other[i]) * (one[i] - other[i]);
    return sum;
}

static void *work(void *argument) {
    long number = (long)argument, share = POINTS / threads, from = number * share;
    for (int round = 0; round < CANDIDATES; round++) {
        int candidate = round * 7919L % POINTS;
        double mine = 0;
        for (long i = from; i < from + share; i++) {
            float other = distance(points[i], points[candidate]);
            if (other < cost[i])
                mine += cost[i] - other;
        }
        saved[number] = mine;
        wait_for_all();
        double all = 0;
        for (long i = 0; i < threads; i++)
            all += saved[i];
        if (all > 100)
            for (long i = from; i < from + share; i++) {
                float other = distance(points[i], points[candidate]);
                if (other < cost[i])
                    cost[i] = other, centre[i] = candidate;
            }
        wait_for_all();
    }
    return 0;
}

int main(int count, char **arguments) {
    threads = count > 1 ? atoi(arguments[1]) : 2;
    unsigned state = 1;
    for (int i = 0; i < POINTS; i++)
        for (int j = 0; j < DIMENSIONS; j++)
            points[i][j] = (state = state * 1664525 + 1013904223) >> 24;
    for (int i = 0; i < POINTS; i++)
        cost[i] = distance(points[i], points[0]);
    pthread_t all[128];
    for (long i = 0; i < threads; i++)
        pthread_create(&all[i], 0, work, (void *)i);
    for (long i = 0; i < threads; i++)
        pthread_join(all[i], 0);
    double sum = 0;
    for (int i = 0; i < POINTS; i++)
        sum += cost[i];
    printf("%.0f\n", sum);
}
