#include "two.h"
static int value;
static void *early(void *x) {
    value = 1; // RACE value
    return x;
}
static void *late(void *x) {
    usleep(50000);
    value = 2; // RACE value
    return x;
}
int main(void) {
    run(early, late);
    printf("%d\n", value);
}
