// An unaligned access across two words.
#include "two.h"
char buffer[32];
static void *wide(void *arg) {
    for (int i = 0; i < 50; i++) {
        long value = i;
        __builtin_memcpy(buffer + 5, &value, 8); // RACE buffer
    }
    return arg;
}
static void *narrow(void *arg) {
    for (int i = 0; i < 50; i++)
        buffer[9] = i; // RACE buffer
    return arg;
}
int main(void) {
    run(wide, narrow);
    printf("%d\n", buffer[5] >= 0);
    return 0;
}
