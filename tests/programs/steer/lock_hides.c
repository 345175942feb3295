// The writer passes the lock behind its write, the reader in front of its
// read. Whoever looks at a run in which the reader comes second sees the two
// accesses ordered by the lock; and it always comes second, because it sleeps
// first. Nothing but the sleep makes it so.
// CANDIDATE: write read
// UNSTEERED: never
// STEERED: happens
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int passes;
static int value;

static void pass(void) {
    pthread_mutex_lock(&lock);
    passes++;
    pthread_mutex_unlock(&lock);
}

static void *writer(void *nothing) {
    value = 42; // RACE write
    pass();
    return nothing;
}

static void *reader(void *nothing) {
    usleep(200000);
    pass();
    printf("value %d\n", value); // RACE read
    return nothing;
}

int main(void) {
    pthread_t threads[2];
    pthread_create(&threads[0], NULL, writer, NULL);
    pthread_create(&threads[1], NULL, reader, NULL);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
