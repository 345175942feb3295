#include "two.h"
static struct {
    unsigned left : 4, right : 4;
} bits;
static void *left(void *x) {
    bits.left = 3; // RACE bits
    return x;
}
static void *right(void *x) {
    bits.right = 5; // RACE bits
    return x;
}
int main(void) {
    run(left, right);
    printf("%d\n", bits.left + bits.right);
}
