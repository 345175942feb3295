#include "two.h"
// The last user of an object ends its lock and frees it.
struct object {
    pthread_mutex_t lock;
    int users;
};
static void *leave(void *x) {
    struct object *object = x;
    pthread_mutex_lock(&object->lock);
    int left = --object->users;
    pthread_mutex_unlock(&object->lock);
    if (!left) {
        pthread_mutex_destroy(&object->lock);
        free(object);
    }
    return 0;
}
int main(void) {
    struct object *object = calloc(1, sizeof *object);
    pthread_mutex_init(&object->lock, 0);
    object->users = 2;
    run_with(leave, object, leave, object);
    puts("left");
}
