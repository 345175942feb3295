#include "two.h"
static union {
    long whole;
    char bytes[8];
} shared;
static void *whole(void *x) {
    shared.whole = -1; // RACE union
    return x;
}
static void *byte(void *x) {
    shared.bytes[5] = 1; // RACE union
    return x;
}
int main(void) {
    run(whole, byte);
    printf("%ld\n", shared.whole);
}
