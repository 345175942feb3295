// A string in a buffer of which the rest is written meanwhile: the C library
// reads whole vectors, past the end of the string.
#include "two.h"
#include <stdlib.h>
static char *buffer;
static char copy[64];
static volatile size_t sink;
static void *reader(void *arg) {
    for (int i = 0; i < 20; i++) {
        sink += strlen(buffer);
        strcpy(copy, buffer);
        sink += strcmp(copy, buffer) + (strchr(buffer, 'z') != 0);
    }
    return arg;
}
static void *writer(void *arg) {
    for (int i = 0; i < 20; i++)
        memset(buffer + 8, 'a' + i, 24);
    return arg;
}
int main(void) {
    buffer = malloc(64);
    strcpy(buffer, "head");
    run(reader, writer);
    puts(copy);
    return 0;
}
