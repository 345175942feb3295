// CRASH at early_use.c:27 in some schedules: locks order each access, nothing orders the two sections
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int *shared;

static void *set(void *unused)
{
    (void)unused;
    for (volatile int i = 0; i < 40000; i++) { }
    pthread_mutex_lock(&lock);
    shared = malloc(sizeof *shared);
    *shared = 1;
    pthread_mutex_unlock(&lock);
    return NULL;
}

static void *use(void *unused)
{
    (void)unused;
    for (volatile int i = 0; i < 40000; i++) { }
    pthread_mutex_lock(&lock);
    int *mine = shared;
    pthread_mutex_unlock(&lock);
    printf("%d\n", *mine);
    return NULL;
}

int main(void)
{
    pthread_t setter, user;
    pthread_create(&user, NULL, use, NULL);
    pthread_create(&setter, NULL, set, NULL);
    pthread_join(setter, NULL);
    pthread_join(user, NULL);
    return 0;
}
