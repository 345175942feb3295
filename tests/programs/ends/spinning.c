// Threads that make no system call and do not end unless a signal tells them to.
#include <pthread.h>
#include <signal.h>

static volatile int stop;

static void on_signal(int number) {
    stop = number;
}

static void *spin(void *unused) {
    while (!stop)
        ;
    return unused;
}

int main(void) {
    pthread_t one, other;
    // With a handler nobody can say that it will never end.
    signal(SIGUSR1, on_signal);
    pthread_create(&one, 0, spin, 0);
    pthread_create(&other, 0, spin, 0);
    pthread_join(one, 0);
    return 0;
}
