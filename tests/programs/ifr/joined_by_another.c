// RACE value
// A join orders what the thread did for the one that joins it, not for others.
#include <pthread.h>
#include <unistd.h>
int value;
static void *early(void *x) {
    value = 1;
    return x;
}
static void *late(void *x) {
    usleep(50000);
    value = 2;
    return x;
}
int main(void) {
    pthread_t one, two;
    pthread_create(&one, 0, early, 0);
    pthread_create(&two, 0, late, 0);
    pthread_join(one, 0);
    pthread_join(two, 0);
    return 0;
}
