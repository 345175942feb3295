// MISSED at stripped: a check of a value looks like an acquire load there.
// The value is made under the read lock.
#include "two.h"
static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static int made;
static void *get(void *x) {
    pthread_rwlock_rdlock(&lock);
    if (made == 0) // RACE made
        made = 5; // RACE made
    pthread_rwlock_unlock(&lock);
    return x;
}
int main(void) {
    run(get, get);
    printf("%d\n", made);
}
