// The locks of both_ways.c, with a limit to the wait. WELL
#include <pthread.h>
#include <stdio.h>
#include <time.h>

static pthread_mutex_t left = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t right = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t both;

static void *take(void *first)
{
    pthread_mutex_t *own = first, *next = own == &left ? &right : &left;
    struct timespec until;
    pthread_mutex_lock(own);
    pthread_barrier_wait(&both);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += own == &left ? 3 : 6;
    if (pthread_mutex_timedlock(next, &until) == 0)
        pthread_mutex_unlock(next);
    pthread_mutex_unlock(own);
    return NULL;
}

int main(void)
{
    pthread_t one, other;
    pthread_barrier_init(&both, NULL, 2);
    pthread_create(&one, NULL, take, &left);
    pthread_create(&other, NULL, take, &right);
    pthread_join(one, NULL);
    pthread_join(other, NULL);
    puts("done");
    return 0;
}
