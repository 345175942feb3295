#include "two.h"
long hits;
pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static void *reader(void *arg) {
    for (int i = 0; i < 100; i++) {
        pthread_rwlock_rdlock(&lock);
        hits++; // RACE hits
        pthread_rwlock_unlock(&lock);
    }
    return arg;
}
int main(void) {
    run(reader, reader);
    printf("%ld\n", hits);
    return 0;
}
