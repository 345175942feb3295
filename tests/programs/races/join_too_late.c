#include "two.h"
int value;
static void *writer(void *arg) {
    value = 7; // RACE value
    return arg;
}
int main(void) {
    pthread_t thread;
    pthread_create(&thread, 0, writer, 0);
    int early = value; // RACE value
    pthread_join(thread, 0);
    printf("%d\n", early >= 0);
    return 0;
}
