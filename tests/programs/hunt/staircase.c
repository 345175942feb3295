// Wrong only if one thread sees each of three states of the other: three
// switches in the right places.
// HUNT fails: signal 6
#include "work.h"
#include <pthread.h>

static volatile int stage;
static volatile int step;

static void *climber(void *unused) {
    (void)unused;
    work(100);
    stage = 1;  // DECIDES
    step++;
    stage = 2;  // DECIDES
    step++;
    stage = 3;  // DECIDES
    return 0;
}

static void *watcher(void *unused) {
    (void)unused;
    work(100);
    if (stage != 1)  // DECIDES
        return 0;
    if (stage != 2)  // DECIDES
        return 0;
    if (stage == 3)  // DECIDES
        abort();
    return 0;
}

int main(void) {
    pthread_t threads[2];
    pthread_create(&threads[0], 0, climber, 0);
    pthread_create(&threads[1], 0, watcher, 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], 0);
    return 0;
}
