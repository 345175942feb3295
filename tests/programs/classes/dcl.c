// Double-checked locking: the first check is not under the lock.
#include <pthread.h>
#include <stdio.h>

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
int ready;
int made;

void *user(void *unused) {
    if (!ready) {                          // RACE ready: k-witness-harmless
        pthread_mutex_lock(&lock);
        if (!ready) {
            made++;
            ready = 1;                     // RACE ready: k-witness-harmless
        }
        pthread_mutex_unlock(&lock);
    }
    return 0;
}

int main(void) {
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], 0, user, 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], 0);
    printf("made %d\n", made);
    return 0;
}
