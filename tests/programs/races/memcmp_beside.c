// The bytes beside those that are compared.
#include "two.h"
static char *text;
static volatile int length = 3, seen;
static void *compare(void *x) {
    seen = memcmp(text + 5, "abc", length);
    return x;
}
static void *change(void *x) {
    usleep(1000);
    text[4] = text[8] = 'b';
    return x;
}
int main(void) {
    text = calloc(1, 64);
    run(compare, change);
    printf("%d\n", seen != 0);
    free(text);
}
