// ORDERS harmful
// NOT-LABEL approximate-computation
// Paper 000, figure 2: a reference count that is changed without a lock; the
// last one to leave frees the object, or both do, or nobody does.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

struct object {
    volatile int references;
    char data[60];
};

static struct object *volatile shared[40];

static void release(struct object *object) {
    object->references--; // RACE
    if (object->references == 0) // RACE
        free(object);
}

static void *work(void *unused) {
    for (int i = 0; i < 40; i++) release(shared[i]);
    return unused;
}

int main(void) {
    pthread_t one, two;
    for (int i = 0; i < 40; i++) {
        shared[i] = calloc(1, sizeof *shared[i]);
        shared[i]->references = 2;
    }
    pthread_create(&one, NULL, work, NULL);
    pthread_create(&two, NULL, work, NULL);
    pthread_join(one, NULL);
    pthread_join(two, NULL);
    puts("done");
    return 0;
}
