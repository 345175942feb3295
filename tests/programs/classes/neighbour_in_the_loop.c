// A loop waits for one field and writes the one beside it, in the same eight bytes.
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

struct {
    int rounds;
    volatile int stop;
} state;

void *stopper(void *unused) {
    state.stop = 1;                        // RACE stop: spec-violated hang RACE seen: k-witness-harmless
    return 0;
}

void *waiter(void *unused) {
    state.stop = 0;                        // RACE stop: spec-violated hang
    while (!state.stop)                    // RACE seen: k-witness-harmless
        state.rounds++;
    return 0;
}

int main(void) {
    pthread_t one, two;
    pthread_create(&one, 0, waiter, 0);
    usleep(1000);
    pthread_create(&two, 0, stopper, 0);
    pthread_join(one, 0);
    pthread_join(two, 0);
    puts("done");
    return 0;
}
