// A flag decides in which order the locks are taken; the wrong answer
// deadlocks, but only if the threads meet between the locks.
#include <pthread.h>
#include <stdio.h>

pthread_mutex_t a = PTHREAD_MUTEX_INITIALIZER;
pthread_mutex_t b = PTHREAD_MUTEX_INITIALIZER;
int reversed;
int steps;

void work(void) {
    for (int i = 0; i < 10; i++)
        __sync_fetch_and_add(&steps, 1);
}

void *setter(void *unused) {
    reversed = 1;                          // RACE reversed: spec-violated deadlock
    pthread_mutex_lock(&b);
    work();
    pthread_mutex_lock(&a);
    pthread_mutex_unlock(&a);
    pthread_mutex_unlock(&b);
    return 0;
}

void *user(void *unused) {
    int way = reversed;                    // RACE reversed: spec-violated deadlock
    pthread_mutex_lock(way ? &b : &a);
    work();
    pthread_mutex_lock(way ? &a : &b);
    pthread_mutex_unlock(&a);
    pthread_mutex_unlock(&b);
    return 0;
}

int main(void) {
    pthread_t one, two;
    pthread_create(&one, 0, setter, 0);
    pthread_create(&two, 0, user, 0);
    pthread_join(one, 0);
    pthread_join(two, 0);
    printf("done\n");
    return 0;
}
