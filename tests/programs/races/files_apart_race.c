// Two files that have nothing to do with one another, and devices.
#include "two.h"
#include <fcntl.h>
static char one_name[] = "/tmp/deadheat-apart-XXXXXX", other_name[] = "/tmp/deadheat-apart-XXXXXX";
static int one, other, value;
static void *writer(void *arg) {
    int device = open("/dev/null", O_WRONLY);
    value = 1; // RACE value
    pwrite(one, "x", 1, 0);
    write(device, "x", 1);
    return arg;
}
static void *reader(void *arg) {
    char byte;
    int device = open("/dev/null", O_RDONLY);
    read(device, &byte, 1);
    pread(other, &byte, 1, 0);
    value++; // RACE value
    return arg;
}
int main(void) {
    one = mkstemp(one_name);
    other = mkstemp(other_name);
    run(reader, writer);
    unlink(one_name);
    unlink(other_name);
    printf("%d\n", value > 0);
    return 0;
}
