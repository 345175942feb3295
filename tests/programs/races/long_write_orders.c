#include "two.h"
// A write that does not fit has been read in part before it returns.
static int value, ends[2];
static char many[1 << 20];
static void *writes(void *x) {
    value = 4;
    if (write(ends[1], many, sizeof many) != sizeof many)
        abort();
    return x;
}
static void *reads(void *x) {
    char byte;
    if (read(ends[0], &byte, 1) != 1)
        abort();
    printf("%d\n", value);
    for (size_t left = sizeof many - 1; left > 0;) {
        static char part[1 << 16];
        ssize_t got = read(ends[0], part, sizeof part);
        if (got <= 0)
            abort();
        left -= got;
    }
    return x;
}
int main(void) {
    if (pipe(ends))
        return 1;
    run(writes, reads);
}
