#include "two.h"
#include <sys/eventfd.h>
static int value, end;
static void *produce(void *x) {
    value = 6;
    eventfd_write(end, 1);
    return x;
}
static void *consume(void *x) {
    eventfd_t number;
    eventfd_read(end, &number);
    printf("%d\n", value);
    return x;
}
int main(void) {
    end = eventfd(0, 0);
    run(produce, consume);
}
