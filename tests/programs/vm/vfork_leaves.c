// What a vfork child does to memory is there when its parent goes on: mappings
// that it made, removed, moved and protected, the heap, and what it wrote.
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096

static char *volatile made, *volatile reserved, *volatile of_file, *volatile grown;

static char *anonymous(size_t pages, int protection) {
    return mmap(NULL, pages * PAGE, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static int mapped(void *at) {
    unsigned char answer;
    return mincore(at, PAGE, &answer) == 0;
}

int main(void) {
    char *removed = anonymous(3, PROT_READ | PROT_WRITE);
    char *closed = anonymous(1, PROT_READ | PROT_WRITE);
    char *opened = anonymous(1, PROT_NONE);
    char *written = anonymous(4, PROT_READ | PROT_WRITE);
    int file = memfd_create("file", 0);
    ftruncate(file, 2 * PAGE);
    pwrite(file, "second page", 12, PAGE);
    strcpy(removed, "first");
    strcpy(removed + 2 * PAGE, "third");
    strcpy(closed, "closed");
    char *before = sbrk(0);

    pid_t child = vfork();
    if (child == 0) {
        made = anonymous(3, PROT_READ | PROT_WRITE);
        strcpy(made + PAGE, "made by the child");
        mprotect(made + 2 * PAGE, PAGE, PROT_NONE);
        reserved = anonymous(2, PROT_NONE);
        of_file = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, PAGE);
        of_file[0] = 'S';
        munmap(removed + PAGE, PAGE);
        mprotect(closed, PAGE, PROT_READ);
        mprotect(opened, PAGE, PROT_READ | PROT_WRITE);
        strcpy(opened, "opened");
        written[3 * PAGE] = 7;
        grown = sbrk(5 * PAGE);
        strcpy(grown + 4 * PAGE, "on the heap");
        _exit(9);
    }
    int status;
    waitpid(child, &status, 0);
    printf("exit %d\n", WEXITSTATUS(status));
    printf("made: %s, %d %d\n", made + PAGE, made[0], mapped(made + 2 * PAGE));
    printf("reserved: %d %d\n", mapped(reserved), mapped(reserved + PAGE));
    printf("file: %s\n", of_file);
    printf("removed: %s %d %s\n", removed, mapped(removed + PAGE), removed + 2 * PAGE);
    printf("opened: %s, written: %d %d\n", opened, written[3 * PAGE], written[0]);
    printf("heap: %d %s %ld\n", grown == before, grown + 4 * PAGE, (long)((char *)sbrk(0) - before));
    // It is the parent's to use and to give back.
    printf("given back: %d", munmap(made, 3 * PAGE));
    printf(" %d\n", mapped(made));
    fflush(stdout);

    // Without CLONE_VM the parent waits as well, but nothing is shared.
    volatile int own = 1;
    child = syscall(SYS_clone, CLONE_VFORK | SIGCHLD, 0, 0, 0, 0);
    if (child == 0) {
        own = 2;
        munmap(written, PAGE);
        _exit(own);
    }
    waitpid(child, &status, 0);
    printf("apart: exit %d, %d %d\n", WEXITSTATUS(status), own, mapped(written));
    fflush(stdout);

    // The write to what the child has made read-only.
    closed[0] = 'C';
    return 0;
}
