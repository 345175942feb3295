// One thread goes along a chain of locks, two held at a time; another takes the
// last before the first. Nobody ever holds the first while taking the last. A
// lock that is made anew is another one.
#include <pthread.h>
#define COUNT 20
static pthread_mutex_t locks[COUNT], again[2];
static void *along(void *unused) {
    pthread_mutex_lock(&locks[0]);
    for (int i = 1; i < COUNT; i++) {
        pthread_mutex_lock(&locks[i]);
        pthread_mutex_unlock(&locks[i - 1]);
    }
    pthread_mutex_unlock(&locks[COUNT - 1]);
    return unused;
}
static void both(pthread_mutex_t *first, pthread_mutex_t *second) {
    pthread_mutex_lock(first);
    pthread_mutex_lock(second);
    pthread_mutex_unlock(second);
    pthread_mutex_unlock(first);
}
static void *forth(void *unused) {
    both(&again[0], &again[1]);
    return unused;
}
static void *back(void *unused) {
    both(&again[1], &again[0]);
    both(&locks[COUNT - 1], &locks[0]);
    return unused;
}
static void run(void *(*body)(void *)) {
    pthread_t thread;
    pthread_create(&thread, 0, body, 0);
    pthread_join(thread, 0);
}
int main(void) {
    for (int i = 0; i < COUNT; i++)
        pthread_mutex_init(&locks[i], 0);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 2; i++)
            pthread_mutex_init(&again[i], 0);
        run(round ? back : forth);
        for (int i = 0; i < 2; i++)
            pthread_mutex_destroy(&again[i]);
    }
    run(along);
}
