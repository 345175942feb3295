#include "two.h"
int value;
int ends[2];
static void *writer(void *arg) {
    value = 3;
    if (write(ends[1], "x", 1) != 1)
        abort();
    return arg;
}
static void *reader(void *arg) {
    char byte;
    if (read(ends[0], &byte, 1) != 1)
        abort();
    printf("%d\n", value);
    return arg;
}
int main(void) {
    if (pipe(ends))
        return 1;
    run(reader, writer);
    return 0;
}
