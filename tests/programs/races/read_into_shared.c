#include "two.h"
static char buffer[8];
static int ends[2];
static void *receive(void *x) {
    if (read(ends[0], buffer, 4) != 4) // RACE buffer
        abort();
    return x;
}
static void *look(void *x) {
    return x + buffer[1]; // RACE buffer
}
int main(void) {
    if (pipe(ends) || write(ends[1], "abcd", 4) != 4)
        return 1;
    run(receive, look);
    puts("done");
}
