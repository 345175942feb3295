// LEVELS 0 1 2
// An index is read while another thread moves it past the end of a global
// array: the store lands in the next variable, where nothing crashes.
#include <pthread.h>
#include <stdio.h>

struct cell {
    int key, value;
};

int used = 3;
struct cell cells[32];
long behind[512];

void *setter(void *unused) {
    cells[used].value = 5;          // RACE used: spec-violated memory-error out-of-bounds
    return 0;
}

void *other(void *unused) {
    used = 40;                      // RACE used: spec-violated memory-error out-of-bounds
    return 0;
}

int main(void) {
    pthread_t one, two;
    pthread_create(&one, 0, setter, 0);
    pthread_create(&two, 0, other, 0);
    pthread_join(one, 0);
    pthread_join(two, 0);
    puts("done");
    return (int)behind[0];
}
