// A wide access against a byte in its middle.
#include "two.h"
union {
    unsigned long whole;
    unsigned char bytes[8];
} word;
static void *wide(void *arg) {
    for (int i = 0; i < 50; i++)
        word.whole = i; // RACE word
    return arg;
}
static void *narrow(void *arg) {
    for (int i = 0; i < 50; i++)
        word.bytes[5] = i; // RACE word
    return arg;
}
int main(void) {
    run(wide, narrow);
    printf("%d\n", word.whole != 0);
    return 0;
}
