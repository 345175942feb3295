#include "two.h"
// The waiter looks at the result without the lock.
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int result;
static void *produce(void *x) {
    pthread_mutex_lock(&lock);
    result = 4; // RACE result
    pthread_mutex_unlock(&lock);
    return x;
}
static void *consume(void *x) {
    usleep(1000);
    printf("%d\n", result); // RACE result
    return x;
}
int main(void) { run(produce, consume); }
