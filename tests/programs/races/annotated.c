// MISSED at stripped: a check of a flag looks like an acquire load there.
// Ordered by means only the program knows, and says.
#include "two.h"
#include <valgrind/helgrind.h>
int data;
volatile int flag;
static void *setter(void *arg) {
    data = 4;
    ANNOTATE_HAPPENS_BEFORE(&flag);
    flag = 1; // RACE flag
    return arg;
}
static void *spinner(void *arg) {
    while (!flag) // RACE flag
        sched_yield();
    ANNOTATE_HAPPENS_AFTER(&flag);
    printf("%d\n", data);
    return arg;
}
int main(void) {
    run(spinner, setter);
    return 0;
}
