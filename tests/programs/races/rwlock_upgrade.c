// Looks again after giving up the read lock: correct.
#include "two.h"
static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static int *cached, made;
static void *get(void *x) {
    pthread_rwlock_rdlock(&lock);
    int *seen = cached;
    pthread_rwlock_unlock(&lock);
    if (!seen) {
        pthread_rwlock_wrlock(&lock);
        if (!cached) {
            cached = malloc(sizeof *cached);
            *cached = 5;
            made++;
        }
        seen = cached;
        pthread_rwlock_unlock(&lock);
    }
    printf("%d\n", *seen);
    return x;
}
int main(void) {
    run(get, get);
    printf("%d\n", made);
    free(cached);
}
