#include "two.h"
// One thread makes the mutex while the other already takes it.
static pthread_mutex_t lock;
static int total;
static void *make(void *x) {
    pthread_mutex_init(&lock, 0); // RACE lock
    pthread_mutex_lock(&lock);    // RACE lock
    total++; // RACE total
    pthread_mutex_unlock(&lock);  // RACE lock
    return x;
}
static void *take(void *x) {
    pthread_mutex_lock(&lock);    // RACE lock
    total++; // RACE total
    pthread_mutex_unlock(&lock);  // RACE lock
    return x;
}
int main(void) {
    run(make, take);
    printf("%d\n", total);
}
