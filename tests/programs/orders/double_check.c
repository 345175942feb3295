// ORDERS no-state-change state-change
// Paper 000, table 2: double check. One order takes the lock and finds nothing
// to do, the other does not take it: the paper's strict answer depends on which
// of the two instances is met.
#include <pthread.h>
#include <stdio.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static volatile int made;
static int value;

static void *use(void *unused) {
    for (int i = 0; i < 20; i++) {
        if (!made) { // RACE
            pthread_mutex_lock(&lock);
            if (!made) {
                value = 42;
                made = 1; // RACE
            }
            pthread_mutex_unlock(&lock);
        }
    }
    return unused;
}

int main(void) {
    pthread_t one, two;
    pthread_create(&one, NULL, use, NULL);
    pthread_create(&two, NULL, use, NULL);
    pthread_join(one, NULL);
    pthread_join(two, NULL);
    printf("%d\n", value);
    return 0;
}
