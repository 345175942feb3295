// The main thread is joined, but only after the access.
#include "two.h"
static pthread_t first;
static int value;
static void *last(void *arg) {
    value++; // RACE value
    pthread_join(first, 0);
    return arg;
}
int main(void) {
    pthread_t thread;
    first = pthread_self();
    pthread_create(&thread, 0, last, 0);
    value++; // RACE value
    pthread_exit(0);
}
