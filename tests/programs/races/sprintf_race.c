#include "two.h"
static char text[64];
static void *print(void *x) {
    sprintf(text, "%d", 12345); // RACE text
    return x;
}
static void *count(void *x) {
    return x + strlen(text); // RACE text
}
int main(void) {
    run(print, count);
    puts(text);
}
