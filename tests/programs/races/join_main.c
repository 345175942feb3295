// The main thread can end by itself and be joined like any other.
#include "two.h"
static pthread_t first;
static int value;
static void *last(void *arg) {
    pthread_join(first, 0);
    value++;
    printf("%d\n", value);
    return arg;
}
int main(void) {
    pthread_t thread;
    first = pthread_self();
    pthread_create(&thread, 0, last, 0);
    value++;
    pthread_exit(0);
}
