// MISSED at stripped: nothing tells a plain access from an atomic one there.
#include "two.h"
int count;
static void *locked(void *arg) {
    for (int i = 0; i < 50; i++)
        __sync_fetch_and_add(&count, 1); // RACE count
    return arg;
}
static void *plain(void *arg) {
    for (int i = 0; i < 50; i++)
        count = i; // RACE count
    return arg;
}
int main(void) {
    run(locked, plain);
    puts("done");
    return 0;
}
