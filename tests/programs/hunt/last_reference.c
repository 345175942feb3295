// Two owners let go of an object; both find they were not the last.
// HUNT fails: exit 1
#include "work.h"
#include <pthread.h>

struct object {
    volatile int references;
};

static int freed;

static void release(struct object *object) {
    int left = object->references - 1;  // DECIDES
    object->references = left;          // DECIDES
    if (left == 0)
        freed++;
}

static void *owner(void *object) {
    work(250);
    release(object);
    return 0;
}

int main(void) {
    struct object *object = malloc(sizeof *object);
    object->references = 2;
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], 0, owner, object);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], 0);
    free(object);
    return freed != 1;
}
