// Readers see both halves of a pair equal; semaphores and once beside.
// identity: output as natively
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static sem_t done;
static long first, second, torn, started;

static void start(void) { started++; }

static void *reader(void *unused) {
    (void)unused;
    pthread_once(&once, start);
    for (int i = 0; i < 200; i++) {
        pthread_rwlock_rdlock(&lock);
        torn += first != second;
        pthread_rwlock_unlock(&lock);
    }
    sem_post(&done);
    return NULL;
}

static void *writer(void *unused) {
    (void)unused;
    pthread_once(&once, start);
    for (int i = 0; i < 200; i++) {
        pthread_rwlock_wrlock(&lock);
        first++;
        second++;
        pthread_rwlock_unlock(&lock);
    }
    sem_post(&done);
    return NULL;
}

int main(void) {
    pthread_t threads[4];
    sem_init(&done, 0, 0);
    for (int i = 0; i < 4; i++) {
        pthread_create(&threads[i], NULL, i % 2 ? reader : writer, NULL);
        pthread_detach(threads[i]);
    }
    for (int i = 0; i < 4; i++)
        sem_wait(&done);
    printf("%ld %ld, torn %ld, started %ld\n", first, second, torn, started);
    return 0;
}
