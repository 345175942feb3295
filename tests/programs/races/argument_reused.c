#include "two.h"
// The loop variable is given to threads by address.
static void *show(void *x) {
    printf("%d\n", *(int *)x >= 0); // RACE i
    return 0;
}
int main(void) {
    pthread_t threads[3];
    int i;
    for (i = 0; i < 3; i++) // RACE i
        pthread_create(&threads[i], 0, show, &i); // RACE i
    for (int j = 0; j < 3; j++)
        pthread_join(threads[j], 0);
}
