#include "two.h"
long shared;
pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER, other = PTHREAD_MUTEX_INITIALIZER;
static void *first(void *arg) {
    for (int i = 0; i < 50; i++) {
        pthread_mutex_lock(&one);
        shared += 2; // RACE shared
        pthread_mutex_unlock(&one);
    }
    return arg;
}
static void *second(void *arg) {
    for (int i = 0; i < 50; i++) {
        pthread_mutex_lock(&other);
        shared += 3; // RACE shared
        pthread_mutex_unlock(&other);
    }
    return arg;
}
int main(void) {
    run(first, second);
    printf("%ld\n", shared);
    return 0;
}
