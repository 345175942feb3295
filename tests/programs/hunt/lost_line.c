// Nothing crashes and the exit code is good; what it prints is wrong.
// HUNT fails: output
// HUNT fail-if: logged [0-8] lines
#include "work.h"
#include <pthread.h>
#include <stdio.h>

static volatile int next;
static int lines[16];

static void *writer(void *unused) {
    (void)unused;
    for (int i = 1; i <= 3; i++) {
        work(60);
        int slot = next;  // DECIDES
        lines[slot] = i;
        next = slot + 1;  // DECIDES
    }
    return 0;
}

int main(void) {
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], 0, writer, 0);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], 0);
    printf("logged %d lines\n", next);
    return 0;
}
