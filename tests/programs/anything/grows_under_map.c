// A file changes and grows after it has been mapped privately: pages not
// written to show that, those written to do not.
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int main(void) {
    long page = sysconf(_SC_PAGESIZE);
    int file = open("grows", O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || ftruncate(file, 2 * page))
        return 1;
    char *map = mmap(0, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    if (map == MAP_FAILED)
        return 1;
    map[0] = 'm';
    if (pwrite(file, "file", 4, 0) != 4 || pwrite(file, "late", 4, page) != 4 ||
        ftruncate(file, 4 * page) || pwrite(file, "more", 4, 3 * page) != 4)
        return 1;
    printf("%c %.4s %d %.4s\n", map[0], map + page, map[2 * page], map + 3 * page);
    unlink("grows");
    return 0;
}
