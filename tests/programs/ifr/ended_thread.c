// RACE value
// The end of a thread is ordered before its join, and nothing else.
#include <pthread.h>
#include <unistd.h>
int value;
static void *writer(void *x) {
    value = 1;
    return x;
}
int main(void) {
    pthread_t t;
    pthread_create(&t, 0, writer, 0);
    usleep(50000);
    value = 2;
    pthread_join(t, 0);
    return 0;
}
