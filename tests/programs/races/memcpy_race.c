#include "two.h"
char source[4096], target[4096];
static void *copier(void *arg) {
    for (int i = 0; i < 20; i++)
        memcpy(target, source, sizeof target); // RACE target
    return arg;
}
static void *poker(void *arg) {
    for (int i = 0; i < 20; i++)
        target[3000] = i; // RACE target
    return arg;
}
int main(void) {
    run(copier, poker);
    puts("done");
    return 0;
}
