#include "two.h"
struct big {
    long words[12];
};
static struct big shared, copy;
static void *writer(void *x) {
    shared.words[11] = 9; // RACE shared
    return x;
}
static void *copier(void *x) {
    copy = shared; // RACE shared
    return x;
}
int main(void) {
    run(writer, copier);
    printf("%ld\n", copy.words[11] / 10);
}
