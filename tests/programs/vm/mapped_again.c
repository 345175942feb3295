// Mappings of one file beside each other are one to mremap, however they were
// made: grown, moved, shrunk, from the middle, and over another one.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096

static int file;

static char *pages(void *at, int first, int count) {
    int fixed = at ? MAP_FIXED : 0;
    return mmap(at, count * PAGE, PROT_READ, MAP_PRIVATE | fixed, file, first * PAGE);
}

// Eight pages, made of three mappings.
static char *put_together(void) {
    char *whole = pages(NULL, 0, 10);
    pages(whole + 2 * PAGE, 2, 3);
    pages(whole + 6 * PAGE, 6, 1);
    return whole;
}

static void show(const char *what, char *from, int count) {
    if (from == MAP_FAILED) {
        printf("%s: errno %d\n", what, errno);
        return;
    }
    printf("%s:", what);
    for (int i = 0; i < count; i++) printf(" %c", from[i * PAGE]);
    printf("\n");
}

int main(void) {
    char name[] = "pages-XXXXXX";
    int writer = mkstemp(name);
    file = open(name, O_RDONLY);
    unlink(name);
    for (int i = 0; i < 16; i++) {
        char letter = 'a' + i;
        pwrite(writer, &letter, 1, i * PAGE);
    }
    ftruncate(writer, 16 * PAGE);

    char *whole = put_together();
    show("moved and grown", mremap(whole, 10 * PAGE, 14 * PAGE, MREMAP_MAYMOVE), 14);
    whole = put_together();
    show("shrunk", mremap(whole, 10 * PAGE, 3 * PAGE, 0), 3);
    whole = put_together();
    show("from the middle", mremap(whole + PAGE, 6 * PAGE, 2 * PAGE, 0), 2);
    whole = put_together();
    char *target = mmap(NULL, 12 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    show("over another", mremap(whole, 10 * PAGE, 12 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, target), 12);
    printf("left behind: %d\n", msync(whole, PAGE, MS_ASYNC));
    whole = put_together();
    target = mmap(NULL, 12 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    show("and smaller", mremap(whole, 10 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, target), 4);
    printf("left behind: %d\n", msync(whole + 8 * PAGE, PAGE, MS_ASYNC));
    return 0;
}
