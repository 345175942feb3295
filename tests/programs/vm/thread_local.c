// Thread-local variables, initialised and not, and keys with destructors.
// identity: output as natively
#include <pthread.h>
#include <stdio.h>

static __thread long counted = 7;
static __thread char zeroed[100];
static pthread_key_t key;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long destroyed;

static void destroy(void *value) {
    pthread_mutex_lock(&lock);
    destroyed += (long)value;
    pthread_mutex_unlock(&lock);
}

static void *work(void *argument) {
    long me = (long)argument;
    pthread_setspecific(key, (void *)me);
    for (int i = 0; i < 100; i++) {
        counted += me;
        zeroed[i] += (char)me;
    }
    return (void *)(counted + zeroed[99]);
}

int main(void) {
    pthread_t threads[3];
    pthread_key_create(&key, destroy);
    for (long i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, work, (void *)(i + 1));
    long sum = 0;
    for (int i = 0; i < 3; i++) {
        void *result;
        pthread_join(threads[i], &result);
        sum += (long)result;
    }
    printf("sum %ld, destroyed %ld, own %ld\n", sum, destroyed, counted);
    return 0;
}
