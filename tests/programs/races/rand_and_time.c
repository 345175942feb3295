#include "two.h"
#include <time.h>
// Functions of the C library that are safe to call from threads.
static void *work(void *x) {
    struct tm parts;
    time_t now = 1000000;
    char text[64];
    for (int i = 0; i < 10; i++) {
        localtime_r(&now, &parts);
        strftime(text, sizeof text, "%F", &parts);
        snprintf(text, sizeof text, "%d %f", rand(), 1.5);
    }
    return x;
}
int main(void) {
    run(work, work);
    puts("done");
}
