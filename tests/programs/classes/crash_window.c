// Whoever finds the mode changed puts another object in place, under the lock
// but in two steps. Only if a user comes between the two, which the recorded
// schedule need not let happen, the race ends in a crash.
#include <pthread.h>
#include <stdio.h>

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
int mode, old_value = 1, new_value = 1, got;
int *shared = &old_value;

void *change(void *unused) {
    mode = 1;                              // RACE mode: spec-violated crash
    return 0;
}

void *replace(void *unused) {
    if (mode) {                            // RACE mode: spec-violated crash
        pthread_mutex_lock(&lock);
        shared = 0;
        pthread_mutex_unlock(&lock);
        pthread_mutex_lock(&lock);
        shared = &new_value;
        pthread_mutex_unlock(&lock);
    }
    return 0;
}

void *use(void *unused) {
    for (volatile int work = 0; work < 2000; work++)
        ;
    pthread_mutex_lock(&lock);
    got = *shared;
    pthread_mutex_unlock(&lock);
    return 0;
}

int main(void) {
    pthread_t threads[3];
    pthread_create(&threads[0], 0, change, 0);
    pthread_create(&threads[1], 0, replace, 0);
    pthread_create(&threads[2], 0, use, 0);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], 0);
    printf("%d\n", got);
    return 0;
}
