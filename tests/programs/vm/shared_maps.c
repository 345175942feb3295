// Shared mappings: memfd seen through two mappings, files through mapping and
// descriptor.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SHOW(e)                                                                \
    do {                                                                       \
        errno = 0;                                                             \
        long result = (long)(e);                                               \
        printf("%s = %ld (%s)\n", #e, result, result < 0 ? strerrorname_np(errno) : "ok"); \
    } while (0)

int main(void) {
    int fd = memfd_create("two", MFD_ALLOW_SEALING);
    SHOW(ftruncate(fd, 8192));
    char *a = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    char *b = mmap(NULL, 8192, PROT_READ, MAP_SHARED, fd, 0);
    strcpy(a + 5000, "seen twice");
    puts(b + 5000);
    SHOW(pwrite(fd, "by write", 9, 100));
    puts(a + 100);
    char c[20] = {0};
    SHOW(pread(fd, c, 10, 5000));
    puts(c);
    char *late = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 4096);
    puts(late + 5000 - 4096);
    SHOW(msync(a, 8192, MS_SYNC));
    SHOW(fcntl(fd, F_GET_SEALS));
    SHOW(mincore(a, 8192, (unsigned char *)c));
    SHOW(munmap(b, 8192));
    SHOW(msync(b, 8192, MS_SYNC));

    char name[] = "/tmp/dh-map-XXXXXX";
    int f = mkstemp(name);
    SHOW(write(f, "file contents here", 18));
    char *m = mmap(NULL, 18, PROT_READ | PROT_WRITE, MAP_SHARED, f, 0);
    m[0] = 'F';
    memset(c, 0, sizeof c);
    SHOW(pread(f, c, 18, 0));
    puts(c);
    int g = open(name, O_RDWR);
    SHOW(pwrite(g, "CONTENTS", 8, 5));
    printf("%.18s\n", m);
    char *priv = mmap(NULL, 18, PROT_READ | PROT_WRITE, MAP_PRIVATE, f, 0);
    priv[0] = 'Z';
    printf("%.18s\n%.18s\n", priv, m);
    SHOW((long)mmap(NULL, 10, PROT_WRITE, MAP_SHARED, open(name, O_RDONLY), 0));
    SHOW((long)mmap(NULL, 10, PROT_READ, MAP_PRIVATE, open(name, O_WRONLY), 0));
    SHOW((long)mmap(NULL, 10, PROT_READ, MAP_PRIVATE, 99, 0));
    unlink(name);

    int *anon = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    anon[3] = 7;
    int *moved = mremap(anon, 4096, 8192, MREMAP_MAYMOVE);
    printf("%d\n", moved[3]);
    return 0;
}
