#include "two.h"
static pthread_key_t key;
static void drop(void *block) { free(block); }
static void *work(void *x) {
    int *mine = malloc(sizeof *mine);
    *mine = 1;
    pthread_setspecific(key, mine);
    *(int *)pthread_getspecific(key) += 1;
    return x;
}
int main(void) {
    pthread_key_create(&key, drop);
    run(work, work);
    puts("done");
}
