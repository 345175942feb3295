#include "two.h"
static char buffer[256];
static void *fill(void *x) {
    memset(buffer, 1, sizeof buffer); // RACE buffer
    return x;
}
static void *look(void *x) {
    return x + buffer[200]; // RACE buffer
}
int main(void) {
    run(fill, look);
    printf("%d\n", buffer[200]);
}
