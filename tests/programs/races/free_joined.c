#include "two.h"
int *block;
static void *user(void *arg) {
    for (int i = 0; i < 16; i++)
        ((int *)arg)[i]++;
    return arg;
}
int main(void) {
    pthread_t thread;
    block = calloc(16, sizeof *block);
    pthread_create(&thread, 0, user, block);
    pthread_join(thread, 0);
    free(block);
    puts("done");
    return 0;
}
