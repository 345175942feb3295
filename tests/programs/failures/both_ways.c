// DEADLOCK at both_ways.c:15 both_ways.c:29, when the threads meet between their locks
#include <pthread.h>
#include <stdio.h>

static pthread_mutex_t left = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t right = PTHREAD_MUTEX_INITIALIZER;
static int moved;

static void *to_the_right(void *unused)
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

static void *to_the_left(void *unused)
{
    (void)unused;
    for (int i = 0; i < 400; i++) {
        pthread_mutex_lock(&right);
        for (volatile int work = 0; work < 50; work++) { }
        pthread_mutex_lock(&left);
        moved--;
        pthread_mutex_unlock(&left);
        pthread_mutex_unlock(&right);
    }
    return NULL;
}

int main(void)
{
    pthread_t one, other;
    pthread_create(&one, NULL, to_the_right, NULL);
    pthread_create(&other, NULL, to_the_left, NULL);
    pthread_join(one, NULL);
    pthread_join(other, NULL);
    printf("%d\n", moved);
    return 0;
}
