// Strings in blocks side by side, each used by a thread of its own: the C
// library reads whole vectors, past the end of a short block into the next.
#include "two.h"
#include <stdlib.h>
#include <string.h>
static char *first, *second;
static volatile size_t sink;
static void *reader(void *unused) {
    for (int i = 0; i < 50; i++) {
        memset(first, 'a', 16);
        first[16] = 0;
        sink += strlen(first + 8);
    }
    return unused;
}
static void *writer(void *unused) {
    for (int i = 0; i < 50; i++)
        memset(second, 'b', 20);
    return unused;
}
int main(void) {
    first = malloc(20);
    second = malloc(20);
    run(reader, writer);
}
