#include "two.h"
char source[4096], target[4096];
static void *low(void *arg) {
    for (int i = 0; i < 20; i++)
        memcpy(target, source, 2000);
    return arg;
}
static void *high(void *arg) {
    for (int i = 0; i < 20; i++)
        memcpy(target + 2000, source + 2000, 2096);
    return arg;
}
int main(void) {
    run(low, high);
    puts("done");
    return 0;
}
