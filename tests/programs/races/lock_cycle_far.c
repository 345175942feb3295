// LOCKS lock-order-inversion
// One thread holds three hundred locks, oldest given back first; another takes
// the last of them before the first.
#include <pthread.h>
#define COUNT 300
static pthread_mutex_t locks[COUNT];
static void *all(void *unused) {
    for (int i = 0; i < COUNT; i++)
        pthread_mutex_lock(&locks[i]);
    for (int i = 0; i < COUNT; i++)
        pthread_mutex_unlock(&locks[i]);
    return unused;
}
static void *ends(void *unused) {
    pthread_mutex_lock(&locks[COUNT - 1]);
    pthread_mutex_lock(&locks[0]);
    pthread_mutex_unlock(&locks[0]);
    pthread_mutex_unlock(&locks[COUNT - 1]);
    return unused;
}
int main(void) {
    pthread_t thread;
    for (int i = 0; i < COUNT; i++)
        pthread_mutex_init(&locks[i], 0);
    pthread_create(&thread, 0, all, 0);
    pthread_join(thread, 0);
    pthread_create(&thread, 0, ends, 0);
    pthread_join(thread, 0);
}
