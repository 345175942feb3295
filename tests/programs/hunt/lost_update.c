// Two threads add to a total that both read before either writes.
// HUNT fails: exit 1
#include "work.h"
#include <pthread.h>

static volatile long total;

static void *add(void *unused) {
    (void)unused;
    work(300);
    long seen = total;  // DECIDES
    total = seen + 1;   // DECIDES
    work(100);
    return 0;
}

int main(void) {
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], 0, add, 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], 0);
    return total == 2 ? 0 : 1;
}
