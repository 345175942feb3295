#include "two.h"
static void *show(void *x) {
    printf("%d\n", *(int *)x >= 0);
    return 0;
}
int main(void) {
    pthread_t threads[3];
    int numbers[3];
    for (int i = 0; i < 3; i++) {
        numbers[i] = i;
        pthread_create(&threads[i], 0, show, &numbers[i]);
    }
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], 0);
}
