// The thread is started before what it needs is there; it usually takes long
// enough to get going.
// HUNT fails: signal 11
#include "work.h"
#include <pthread.h>

struct settings {
    int size;
};

static struct settings stored = {5};
static struct settings *settings;
static int taken;

static void *worker(void *unused) {
    (void)unused;
    work(300);
    taken = settings->size;  // DECIDES
    return 0;
}

int main(void) {
    pthread_t thread;
    pthread_create(&thread, 0, worker, 0);
    settings = &stored;  // DECIDES
    work(300);
    pthread_join(thread, 0);
    return taken == 5 ? 0 : 2;
}
