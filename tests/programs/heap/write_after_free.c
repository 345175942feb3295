// The last user may write after the owner has freed; nothing crashes.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

char *buffer;

void *writer(void *unused) {
    buffer[8] = 'x';                // RACE buffer: spec-violated memory-error use-after-free
    return 0;
}

int main(void) {
    pthread_t thread;
    buffer = calloc(1, 64);
    pthread_create(&thread, 0, writer, 0);
    free(buffer);                   // RACE buffer: spec-violated memory-error use-after-free
    pthread_join(thread, 0);
    puts("done");
    return 0;
}
