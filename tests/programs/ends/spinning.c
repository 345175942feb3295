// Threads that make no system call and never end.
#include <pthread.h>

static volatile int stop;

static void *spin(void *unused) {
    while (!stop)
        ;
    return unused;
}

int main(void) {
    pthread_t one, other;
    pthread_create(&one, 0, spin, 0);
    pthread_create(&other, 0, spin, 0);
    pthread_join(one, 0);
    return 0;
}
