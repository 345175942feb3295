// A critical section that is missing: all accesses are in these lines.
#include <pthread.h>
#include <stdio.h>

static int total;

static void *add(void *unused) {
    (void)unused;
    for (int i = 0; i < 50; i++) {
        int seen = total;  // ADD-BEGIN
        total = seen + 1;  // ADD-END: cured
    }
    return 0;
}

int main(void) {
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], 0, add, 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], 0);
    printf("%d\n", total);
    return 0;
}
