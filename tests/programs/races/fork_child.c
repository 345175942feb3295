#include "two.h"
#include <sys/wait.h>
// The child of a fork has its own memory.
static int value;
static void *work(void *x) {
    for (int i = 0; i < 100; i++)
        __sync_fetch_and_add(&value, 1);
    return x;
}
int main(void) {
    pthread_t thread;
    pthread_create(&thread, 0, work, 0);
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    waitpid(child, 0, 0);
    pthread_join(thread, 0);
    printf("%d\n", value);
}
