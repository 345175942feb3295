// Few bytes: vectors under a mask, in some C libraries.
#include "two.h"
static char *text;
static volatile int length = 3, seen;
static void *compare(void *x) {
    seen = memcmp(text + 5, "abc", length); // RACE text
    return x;
}
static void *change(void *x) {
    usleep(1000);
    text[6] = 'b'; // RACE text
    return x;
}
int main(void) {
    text = calloc(1, 64);
    run(compare, change);
    printf("%d\n", seen != 0);
    free(text);
}
