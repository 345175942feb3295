// One thread closes the stream that another has just found open.
// HUNT fails: signal 11
#include "work.h"
#include <pthread.h>

struct stream {
    int length;
};

static struct stream only = {7};
static struct stream *volatile stream = &only;
static volatile int length;

static void *reader(void *unused) {
    (void)unused;
    for (int i = 0; i < 20; i++) {
        work(10);
        if (stream)                   // DECIDES
            length = stream->length;  // DECIDES
    }
    return 0;
}

static void *closer(void *unused) {
    (void)unused;
    work(150);
    stream = 0;  // DECIDES
    return 0;
}

int main(void) {
    pthread_t threads[2];
    pthread_create(&threads[0], 0, reader, 0);
    pthread_create(&threads[1], 0, closer, 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], 0);
    return 0;
}
