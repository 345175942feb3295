#include "two.h"
struct {
    unsigned a : 4, b : 4;
} flags;
static void *first(void *arg) {
    for (int i = 0; i < 100; i++)
        flags.a = i; // RACE flags
    return arg;
}
static void *second(void *arg) {
    for (int i = 0; i < 100; i++)
        flags.b = i; // RACE flags
    return arg;
}
int main(void) {
    run(first, second);
    printf("%d\n", flags.a >= 0);
    return 0;
}
