#include "two.h"
static int ends[2];
static void *use(void *x) {
    for (int i = 0; i < 20; i++)
        if (write(ends[1], "x", 1) != 1) // RACE descriptor
            break;
    return x;
}
static void *shut(void *x) {
    close(ends[1]); // RACE descriptor
    return x;
}
int main(void) {
    if (pipe(ends))
        return 1;
    run(use, shut);
    puts("done");
}
