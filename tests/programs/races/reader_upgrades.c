#include "two.h"
// A write under the read lock.
static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static int hits;
static void *look(void *x) {
    for (int i = 0; i < 50; i++) {
        pthread_rwlock_rdlock(&lock);
        hits++; // RACE hits
        pthread_rwlock_unlock(&lock);
    }
    return x;
}
int main(void) {
    run(look, look);
    printf("%d\n", hits);
}
