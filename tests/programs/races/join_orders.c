#include "two.h"
int value;
static void *writer(void *arg) {
    value = 7;
    return arg;
}
int main(void) {
    pthread_t thread;
    value = 1;
    pthread_create(&thread, 0, writer, 0);
    pthread_join(thread, 0);
    value++;
    pthread_create(&thread, 0, writer, 0);
    pthread_join(thread, 0);
    printf("%d\n", value);
    return 0;
}
