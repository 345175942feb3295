// A buffer and its length are one thing in two variables.
// HUNT fails: signal 6
#include "work.h"
#include <assert.h>
#include <pthread.h>

static char small[8], large[64];
static char *buffer = small;
static unsigned size = sizeof small;

static void *grow(void *unused) {
    (void)unused;
    work(300);
    size = sizeof large;  // DECIDES
    buffer = large;       // DECIDES
    return 0;
}

static void *fill(void *unused) {
    (void)unused;
    for (int i = 0; i < 10; i++) {
        work(30);
        char *at = buffer;      // DECIDES
        unsigned bytes = size;  // DECIDES
        assert(at == large || bytes <= sizeof small);
        at[bytes - 1] = 1;
    }
    return 0;
}

int main(void) {
    pthread_t threads[2];
    pthread_create(&threads[0], 0, grow, 0);
    pthread_create(&threads[1], 0, fill, 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], 0);
    return 0;
}
