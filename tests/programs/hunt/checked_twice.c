// Double-checked initialisation that says it is done before it is.
// HUNT fails: signal 11
#include "work.h"
#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static volatile int ready;
static int *table;
static int sum;

static int *get(void) {
    if (!ready) {  // DECIDES
        pthread_mutex_lock(&lock);
        if (!ready) {
            ready = 1;                         // DECIDES
            table = calloc(64, sizeof *table);  // DECIDES
        }
        pthread_mutex_unlock(&lock);
    }
    return table;  // DECIDES
}

static void *user(void *unused) {
    (void)unused;
    work(200);
    __atomic_fetch_add(&sum, get()[3], __ATOMIC_RELAXED);
    return 0;
}

int main(void) {
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], 0, user, 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], 0);
    return sum;
}
