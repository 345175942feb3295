// Files that the kernel refuses to map, or to make writable: sealed ones, those
// that were opened for reading only, and arguments that it does not take. And
// files that are mapped for reading, then written in other ways.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096

static char *map(const char *what, int fd, int protection, int flags) {
    char *memory = mmap(NULL, 2 * PAGE, protection, flags, fd, 0);
    printf("%s: %s\n", what, memory == MAP_FAILED ? strerrorname_np(errno) : "mapped");
    return memory == MAP_FAILED ? NULL : memory;
}

static void protect(const char *what, char *memory, int protection) {
    int result = mprotect(memory, PAGE, protection);
    printf("%s: %d %s\n", what, result, result < 0 ? strerrorname_np(errno) : "");
}

static void seal(int fd, int seals) {
    int result = fcntl(fd, F_ADD_SEALS, seals);
    printf("seal %x: %d %s, has %x\n", seals, result, result < 0 ? strerrorname_np(errno) : "",
           fcntl(fd, F_GET_SEALS));
}

// Mapped shared from a descriptor that only reads, and written through others.
static void read_while_written(void) {
    char name[] = "read_while_written_XXXXXX", page[PAGE];
    int fd = mkstemp(name);
    memset(page, 'a', PAGE);
    for (int i = 0; i < 3; i++)
        write(fd, page, PAGE);
    int only = open(name, O_RDONLY);
    char *seen = mmap(NULL, 3 * PAGE, PROT_READ, MAP_SHARED, only, 0);
    char *part = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, only, 2 * PAGE);
    printf("%c%c%c %c\n", seen[0], seen[PAGE], seen[2 * PAGE], part[0]);
    pwrite(fd, "b", 1, PAGE);
    printf("%c%c%c %c\n", seen[0], seen[PAGE], seen[2 * PAGE], part[0]);
    lseek(fd, 2 * PAGE, SEEK_SET);
    write(fd, "c", 1);
    printf("%c%c%c %c\n", seen[0], seen[PAGE], seen[2 * PAGE], part[0]);
    char *writes = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    writes[0] = 'd';
    pwrite(fd, "e", 1, 2 * PAGE);
    printf("%c%c%c %c\n", seen[0], seen[PAGE], seen[2 * PAGE], part[0]);
    printf("%c%c%c\n", writes[0], writes[PAGE], writes[2 * PAGE]);
    char *more = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, only, PAGE);
    printf("%c\n", more[0]);
    unlink(name);
}

int main(void) {
    setvbuf(stdout, NULL, _IONBF, 0);
    read_while_written();
    int fd = memfd_create("sealed", MFD_ALLOW_SEALING);
    ftruncate(fd, 2 * PAGE);
    char *early = map("shared and writable", fd, PROT_READ | PROT_WRITE, MAP_SHARED);
    strcpy(early, "written early");
    seal(fd, F_SEAL_WRITE);
    munmap(early, 2 * PAGE);
    seal(fd, F_SEAL_WRITE | F_SEAL_SHRINK);
    map("shared and writable again", fd, PROT_READ | PROT_WRITE, MAP_SHARED);
    char *shared = map("shared", fd, PROT_READ, MAP_SHARED);
    if (shared) {
        printf("%s\n", shared);
        protect("made writable", shared, PROT_READ | PROT_WRITE);
        protect("made unreadable", shared, PROT_NONE);
        protect("readable again", shared, PROT_READ);
    }
    char *private = map("private", fd, PROT_READ, MAP_PRIVATE);
    protect("made writable", private, PROT_READ | PROT_WRITE);
    strcpy(private, "changed");
    printf("%s, %s\n", private, shared ? shared : "");

    // Writable as long as nobody maps it anew.
    int future = memfd_create("future", MFD_ALLOW_SEALING);
    ftruncate(future, 2 * PAGE);
    char *before = map("before", future, PROT_READ | PROT_WRITE, MAP_SHARED);
    seal(future, 0x10);
    before[0] = 'x';
    map("after", future, PROT_READ | PROT_WRITE, MAP_SHARED);
    char *reads = map("reads", future, PROT_READ, MAP_SHARED);
    if (reads) {
        printf("%c\n", reads[0]);
        protect("made writable", reads, PROT_READ | PROT_WRITE);
    }

    char name[] = "sealed_files_XXXXXX";
    int writes = mkstemp(name);
    ftruncate(writes, 2 * PAGE);
    pwrite(writes, "contents", 8, 0);
    int only = open(name, O_RDONLY);
    unlink(name);
    map("only for reading, writable", only, PROT_WRITE, MAP_SHARED);
    char *seen = map("only for reading", only, PROT_READ, MAP_SHARED);
    protect("made writable", seen, PROT_READ | PROT_WRITE);
    printf("%.8s\n", seen);
    char *both = map("for both", writes, PROT_READ, MAP_SHARED);
    protect("made writable", both, PROT_READ | PROT_WRITE);
    both[0] = 'C';
    printf("%.8s\n", seen);
    map("validated", writes, PROT_READ, MAP_SHARED_VALIDATE);
    map("unknown flag", writes, PROT_READ, MAP_SHARED_VALIDATE | 1 << 25);
    map("unknown flag, nobody looks", writes, PROT_READ, MAP_SHARED | 1 << 25);
    map("validated without file", -1, PROT_READ, MAP_SHARED_VALIDATE | MAP_ANONYMOUS);
    map("no kind", writes, PROT_READ, 0);
    map("a folder", open("/", O_RDONLY | O_DIRECTORY), PROT_READ, MAP_PRIVATE);
    map("no descriptor", 999, PROT_READ, MAP_PRIVATE);
    printf("%s\n", mmap(NULL, 0, PROT_READ, MAP_SHARED, writes, 0) == MAP_FAILED ? strerrorname_np(errno) : "");
    return 0;
}
