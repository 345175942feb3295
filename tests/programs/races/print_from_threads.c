// The C library's own locks and buffers are its own affair.
#include "two.h"
static void *worker(void *arg) {
    for (int i = 0; i < 20; i++)
        printf("%s %d\n", (char *)arg, i);
    return arg;
}
int main(void) {
    run_with(worker, "one", worker, "two");
    return 0;
}
