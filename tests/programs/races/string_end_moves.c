// The terminator itself is part of the string.
#include "two.h"
#include <stdlib.h>
static char *buffer;
static volatile size_t sink;
static void *reader(void *arg) {
    for (int i = 0; i < 20; i++)
        sink += strlen(buffer); // RACE end
    return arg;
}
static void *writer(void *arg) {
    for (int i = 0; i < 20; i++)
        buffer[4] = i % 2 ? 'x' : 0; // RACE end
    return arg;
}
int main(void) {
    buffer = calloc(1, 64);
    strcpy(buffer, "head");
    run(reader, writer);
    return 0;
}
