#include "two.h"
long table[8];
pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static void *writer(void *arg) {
    for (int i = 0; i < 100; i++) {
        pthread_rwlock_wrlock(&lock);
        table[i % 8]++;
        pthread_rwlock_unlock(&lock);
    }
    return arg;
}
static void *reader(void *arg) {
    long sum = 0;
    for (int i = 0; i < 100; i++) {
        pthread_rwlock_rdlock(&lock);
        sum += table[i % 8];
        pthread_rwlock_unlock(&lock);
    }
    return (void *)sum;
}
int main(void) {
    run(writer, reader);
    run(reader, writer);
    printf("%ld\n", table[0]);
    return 0;
}
