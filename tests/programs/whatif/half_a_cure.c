// A lock around the one side does not help against the other.
#include <pthread.h>
#include <stdio.h>

static int value;
static int seen;

static void *writer(void *unused) {
    (void)unused;
    for (int i = 0; i < 50; i++) {
        value = i;  // ADD-BEGIN
        value++;    // ADD-END: not-enough
    }
    return 0;
}

static void *reader(void *unused) {
    (void)unused;
    for (int i = 0; i < 50; i++)
        seen = value;
    return 0;
}

int main(void) {
    pthread_t threads[2];
    pthread_create(&threads[0], 0, writer, 0);
    pthread_create(&threads[1], 0, reader, 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], 0);
    printf("%d\n", seen >= 0);
    return 0;
}
