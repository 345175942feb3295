#include "two.h"
static char *text;
static void *make(void *x) {
    text = strdup("a text of some length");
    return x;
}
int main(void) {
    pthread_t thread;
    pthread_create(&thread, 0, make, 0);
    pthread_join(thread, 0);
    printf("%zu\n", strlen(text));
    free(text);
}
