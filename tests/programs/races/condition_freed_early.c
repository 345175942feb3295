// The condition is signalled after the unlock, and may be gone by then.
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
struct box {
    pthread_mutex_t lock;
    pthread_cond_t filled;
    int full;
};
static void *fill(void *argument) {
    struct box *box = argument;
    pthread_mutex_lock(&box->lock);
    box->full = 1;
    pthread_mutex_unlock(&box->lock);
    pthread_cond_signal(&box->filled); // RACE box
    return 0;
}
int main(void) {
    struct box *box = calloc(1, sizeof *box);
    pthread_t thread;
    pthread_create(&thread, 0, fill, box);
    pthread_mutex_lock(&box->lock);
    while (!box->full)
        pthread_cond_wait(&box->filled, &box->lock);
    pthread_mutex_unlock(&box->lock);
    usleep(1000);
    free(box); // RACE box
    pthread_join(thread, 0);
}
