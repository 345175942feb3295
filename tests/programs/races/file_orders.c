// What is done before a file is written happens before what is done after it is
// read: by one descriptor, by two, and under another name.
#include "two.h"
#include <fcntl.h>
static char name[] = "/tmp/deadheat-orders-XXXXXX", other_name[64], third_name[64];
static int file, by_descriptor, by_name, by_rename;
static void *writer(void *arg) {
    by_descriptor = 1;
    pwrite(file, "x", 1, 0);
    by_name = 2;
    int second = open(other_name, O_CREAT | O_WRONLY, 0600);
    write(second, "y", 1);
    close(second);
    by_rename = 3;
    rename(other_name, third_name);
    return arg;
}
static void *reader(void *arg) {
    char byte = 0;
    while (pread(file, &byte, 1, 0) != 1)
        sched_yield();
    printf("%d\n", by_descriptor);
    int third;
    while ((third = open(third_name, O_RDONLY)) < 0)
        sched_yield();
    printf("%d %d\n", by_name, by_rename);
    close(third);
    return arg;
}
int main(void) {
    file = mkstemp(name);
    snprintf(other_name, sizeof other_name, "%s.new", name);
    snprintf(third_name, sizeof third_name, "%s.done", name);
    run(reader, writer);
    unlink(third_name);
    unlink(name);
    return 0;
}
