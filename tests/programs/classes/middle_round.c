// Every round leaves another state, but only one in the middle follows a pointer
// that may be null: what was seen to change is followed to the end, all of it.
#include <pthread.h>
#include <sched.h>
#include <stdio.h>

enum { ROUNDS = 16, EMPTY = 8 };

int values[ROUNDS];
int *where = values;
long got;
pthread_barrier_t barrier;

void *mover(void *unused) {
    for (int i = 0; i < ROUNDS; i++) {
        where = i == EMPTY ? 0 : &values[i];   // RACE where: spec-violated crash
        pthread_barrier_wait(&barrier);
    }
    return 0;
}

void *reader(void *unused) {
    for (int i = 0; i < ROUNDS; i++) {
        // The mover comes first, as a rule.
        sched_yield();
        int *now = where;                      // RACE where: spec-violated crash
        got += i == EMPTY + 1 ? *now : now != 0;
        pthread_barrier_wait(&barrier);
    }
    return 0;
}

int main(void) {
    pthread_t one, two;
    pthread_barrier_init(&barrier, 0, 2);
    pthread_create(&one, 0, mover, 0);
    pthread_create(&two, 0, reader, 0);
    pthread_join(one, 0);
    pthread_join(two, 0);
    printf("done\n");
    return 0;
}
