// RACE shared
// Figure 3(b) of paper 004: two locks for one variable; the regions are made
// to overlap.
#include <pthread.h>
#include <unistd.h>
int shared;
static pthread_mutex_t m[2] = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER };
static void *work(void *p) {
    long i = (long)p;
    pthread_mutex_lock(&m[i]);
    shared++;
    usleep(200000);
    pthread_mutex_unlock(&m[i]);
    return 0;
}
int main(void) {
    pthread_t t;
    pthread_create(&t, 0, work, (void *)1);
    work(0);
    pthread_join(t, 0);
    return 0;
}
