// Different bytes of one word are different variables.
#include "two.h"
struct {
    char a, b;
    short c;
    int d;
} packed;
static void *first(void *arg) {
    for (int i = 0; i < 100; i++) {
        packed.a++;
        packed.c++;
    }
    return arg;
}
static void *second(void *arg) {
    for (int i = 0; i < 100; i++) {
        packed.b++;
        packed.d++;
    }
    return arg;
}
int main(void) {
    run(first, second);
    printf("%d\n", packed.a + packed.b + packed.c + packed.d);
    return 0;
}
