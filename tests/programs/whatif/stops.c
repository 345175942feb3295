// Who is inside waits for who cannot come in.
#include <pthread.h>

static pthread_barrier_t both;
static int value;

static void *meet(void *unused) {
    (void)unused;
    value++;                      // ADD-BEGIN
    pthread_barrier_wait(&both);  // ADD-END: deadlock
    return 0;
}

int main(void) {
    pthread_barrier_init(&both, 0, 2);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], 0, meet, 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], 0);
    return 0;
}
