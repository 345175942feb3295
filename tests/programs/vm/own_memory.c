// A program that writes to its own memory through /proc/self/mem: read-only
// data, code that has run, by pwrite and at a position, and where nothing is.
// And one that copies inside itself by process_vm_readv and process_vm_writev.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

static const char constant[] = "what the compiler put here";

__attribute__((noinline)) static int answer(void) { return 0x11223344; }

int main(void) {
    int memory = open("/proc/self/mem", O_RDWR);
    const char *volatile shown = constant;
    printf("%zd %s\n", pwrite(memory, "WHAT", 4, (uintptr_t)constant), shown);

    // The constant inside the function.
    int (*volatile call)(void) = answer;
    unsigned char *code = memmem(answer, 32, "\x44\x33\x22\x11", 4);
    for (int i = 0; i < 3; i++) {
        printf("%#x\n", call());
        unsigned char other = 0x45 + i;
        pwrite(memory, &other, 1, (uintptr_t)code);
    }
    printf("%#x\n", call());

    // Across a border of protections, by position.
    char *pages = mmap(NULL, 2 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(pages + 4096, 4096, PROT_NONE);
    lseek(memory, (uintptr_t)pages + 4090, SEEK_SET);
    printf("%zd", write(memory, "0123456789ab", 12));
    mprotect(pages + 4096, 4096, PROT_READ);
    printf(" %.12s", pages + 4090);
    printf(" %d\n", lseek(memory, 0, SEEK_CUR) == (off_t)(uintptr_t)pages + 4102);
    char back[7] = "";
    pread(memory, back, 6, (uintptr_t)pages + 4093);
    printf("%s\n", back);

    munmap(pages, 2 * 4096);
    printf("%zd", pwrite(memory, "x", 1, (uintptr_t)pages));
    printf(" %s\n", strerror(errno));

    // Parts of different lengths, up to the end of what is mapped.
    char *space = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(space + 2 * 4096, 4096);
    strcpy(space, "abcdefghijklmnopqrstuvwxyz");
    struct iovec here[] = {{space + 4094, 5}, {space + 100, 0}, {space + 200, 100}};
    struct iovec there[] = {{space, 3}, {space + 10, 9}, {space + 2 * 4096 - 4, 8}};
    printf("%zd", process_vm_readv(getpid(), here, 3, there, 3, 0));
    printf(" %.5s %.7s\n", space + 4094, space + 200);
    printf("%zd", process_vm_writev(getpid(), here, 1, there + 2, 1, 0));
    printf(" %.4s\n", space + 2 * 4096 - 4);
    there[0].iov_base = space + 2 * 4096;
    printf("%zd", process_vm_readv(getpid(), here, 1, there, 1, 0));
    printf(" %s\n", strerror(errno));
    return 0;
}
