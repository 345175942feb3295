// Half a second is always enough for the other thread. Almost.
// HUNT fails: signal 6
#include "work.h"
#include <assert.h>
#include <pthread.h>
#include <unistd.h>

static int answer;

static void *thinker(void *unused) {
    (void)unused;
    work(200);
    answer = 42;  // DECIDES
    return 0;
}

int main(void) {
    pthread_t thread;
    pthread_create(&thread, 0, thinker, 0);
    usleep(500000);
    assert(answer == 42);  // DECIDES
    pthread_join(thread, 0);
    return 0;
}
