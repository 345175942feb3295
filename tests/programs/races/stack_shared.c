#include "two.h"
static void *writer(void *arg) {
    for (int i = 0; i < 50; i++)
        ++*(int *)arg; // RACE local
    return arg;
}
int main(void) {
    pthread_t thread;
    int local = 0;
    pthread_create(&thread, 0, writer, &local);
    for (int i = 0; i < 50; i++)
        ++local; // RACE local
    pthread_join(thread, 0);
    printf("%d\n", local > 0);
    return 0;
}
