// lock_hides put right: both accesses are made under the lock. No schedule can
// bring the two together, and a thread held there keeps the other waiting.
// CANDIDATE: write read
// UNSTEERED: never
// STEERED: never
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int value;

static void *writer(void *nothing) {
    pthread_mutex_lock(&lock);
    value = 42; // RACE write
    pthread_mutex_unlock(&lock);
    return nothing;
}

static void *reader(void *nothing) {
    usleep(200000);
    pthread_mutex_lock(&lock);
    printf("value %d\n", value); // RACE read
    pthread_mutex_unlock(&lock);
    return nothing;
}

int main(void) {
    pthread_t threads[2];
    pthread_create(&threads[0], NULL, writer, NULL);
    pthread_create(&threads[1], NULL, reader, NULL);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
