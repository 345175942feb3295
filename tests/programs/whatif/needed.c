// One lock keeps a counter right, the other protects what only one thread has.
#include <pthread.h>
#include <stdio.h>

static pthread_mutex_t shared = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t own = PTHREAD_MUTEX_INITIALIZER;
static int total;
static int report;

static void *add(void *unused) {
    (void)unused;
    for (int i = 0; i < 20; i++) {
        pthread_mutex_lock(&shared);  // REMOVE: needed
        total++;
        pthread_mutex_unlock(&shared);
    }
    return 0;
}

int main(void) {
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], 0, add, 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], 0);
    pthread_mutex_lock(&own);  // REMOVE: no-harm
    report = total;
    pthread_mutex_unlock(&own);
    printf("%d\n", report);
    return 0;
}
