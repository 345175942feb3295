// MISSED at stripped: a check of a flag looks like an acquire load there.
// A spin on a plain flag: ordered in fact, not by right.
#include "two.h"
volatile int flag;
int data;
static void *setter(void *arg) {
    data = 9; // RACE data
    flag = 1; // RACE flag
    return arg;
}
static void *spinner(void *arg) {
    while (!flag) // RACE flag
        sched_yield();
    printf("%d\n", data); // RACE data
    return arg;
}
int main(void) {
    run(spinner, setter);
    return 0;
}
