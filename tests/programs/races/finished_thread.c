#include "two.h"
// The first thread has ended, but nobody waited for it.
static int value;
static void *first(void *x) {
    value = 1; // RACE value
    return x;
}
int main(void) {
    pthread_t thread;
    pthread_create(&thread, 0, first, 0);
    usleep(20000);
    value = 2; // RACE value
    pthread_join(thread, 0);
    printf("%d\n", value);
}
