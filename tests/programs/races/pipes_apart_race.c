#include "two.h"
// Writing to one pipe orders nothing for who reads from another.
static int value, one[2], other[2];
static void *writes(void *x) {
    value = 3; // RACE value
    if (write(one[1], "x", 1) != 1)
        abort();
    return x;
}
static void *reads(void *x) {
    char byte;
    if (read(other[0], &byte, 1) != 1)
        abort();
    printf("%d\n", value); // RACE value
    return x;
}
int main(void) {
    if (pipe(one) || pipe(other) || write(other[1], "y", 1) != 1)
        return 1;
    run(writes, reads);
}
