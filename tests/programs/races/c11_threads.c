#include <stdio.h>
#include <threads.h>
mtx_t lock;
cnd_t changed;
once_flag flag = ONCE_FLAG_INIT;
int ready, total, setup;
static void prepare(void) { setup = 4; }
static int producer(void *arg) {
    call_once(&flag, prepare);
    mtx_lock(&lock);
    total += setup;
    ready = 1;
    cnd_signal(&changed);
    mtx_unlock(&lock);
    return 3;
}
static int consumer(void *arg) {
    mtx_lock(&lock);
    while (!ready)
        cnd_wait(&changed, &lock);
    total++;
    mtx_unlock(&lock);
    call_once(&flag, prepare);
    return setup;
}
int main(void) {
    thrd_t one, two;
    int result;
    mtx_init(&lock, mtx_plain);
    cnd_init(&changed);
    thrd_create(&one, consumer, 0);
    thrd_create(&two, producer, 0);
    thrd_join(one, &result);
    thrd_join(two, &result);
    printf("%d %d\n", total, result);
    return 0;
}
