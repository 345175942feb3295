#include "two.h"
// main returns while a thread still works on its own data.
static void *work(void *x) {
    int *own = malloc(sizeof *own);
    for (*own = 0; *own < 100000; ++*own)
        ;
    free(own);
    return x;
}
int main(void) {
    pthread_t thread;
    pthread_create(&thread, 0, work, 0);
    puts("done");
}
