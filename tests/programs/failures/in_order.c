// The twin of both_ways.c: one order of locks. WELL
#include <pthread.h>
#include <stdio.h>

static pthread_mutex_t left = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t right = PTHREAD_MUTEX_INITIALIZER;
static int moved;

static void *both(void *unused)
{
    (void)unused;
    for (int i = 0; i < 400; i++) {
        pthread_mutex_lock(&left);
        for (volatile int work = 0; work < 50; work++) { }
        pthread_mutex_lock(&right);
        moved++;
        pthread_mutex_unlock(&right);
        pthread_mutex_unlock(&left);
    }
    return NULL;
}

int main(void)
{
    pthread_t one, other;
    pthread_create(&one, NULL, both, NULL);
    pthread_create(&other, NULL, both, NULL);
    pthread_join(one, NULL);
    pthread_join(other, NULL);
    printf("%d\n", moved);
    return 0;
}
