#include <stdio.h>
#include <threads.h>
static mtx_t lock;
static cnd_t changed;
static int stage, value;
static tss_t own;
static int other(void *x) {
    mtx_lock(&lock);
    while (stage == 0)
        cnd_wait(&changed, &lock);
    value++;
    stage = 2;
    cnd_broadcast(&changed);
    mtx_unlock(&lock);
    tss_set(own, x);
    return 3;
}
int main(void) {
    thrd_t thread;
    int code;
    mtx_init(&lock, mtx_plain);
    cnd_init(&changed);
    tss_create(&own, 0);
    thrd_create(&thread, other, &value);
    mtx_lock(&lock);
    value = 1;
    stage = 1;
    cnd_signal(&changed);
    while (stage != 2)
        cnd_wait(&changed, &lock);
    mtx_unlock(&lock);
    thrd_join(thread, &code);
    cnd_destroy(&changed);
    mtx_destroy(&lock);
    printf("%d %d\n", value, code);
}
