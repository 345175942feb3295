// mmap's family at its edges: mappings that grow, mprotect with what grows, madvise,
// mremap, brk, and what a forked child has.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define SHOW(e)                                                                     \
    do {                                                                            \
        errno = 0;                                                                  \
        long result = (long)(e);                                                    \
        printf("%s = %s (%s)\n", #e, result < 0 ? "-1" : result == 0 ? "0" : "some", \
               result < 0 && result > -4096 ? strerrorname_np(errno) : "ok");       \
    } while (0)

enum { PAGE = 4096, RW = PROT_READ | PROT_WRITE };
enum { POPULATE_READ = 22, POPULATE_WRITE = 23 };

static sigjmp_buf back;
static volatile int signal_code;

static void on_fault(int number, siginfo_t *info, void *context) {
    signal_code = info->si_code;
    siglongjmp(back, number);
}

// 0, or the signal that writing there raises.
static int store(volatile char *at, char value) {
    int got = sigsetjmp(back, 1);
    if (!got)
        *at = value;
    return got;
}

static int load(volatile char *at) {
    int got = sigsetjmp(back, 1);
    return got ? -got : *at;
}

static char *anonymous(size_t pages) {
    return mmap(NULL, pages * PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static void growing(void) {
    // Room of 4 MiB, of which the last pages are a mapping that grows.
    size_t room = 1024;
    char *low = mmap(NULL, room * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(low, room * PAGE);
    char *top = low + room * PAGE;
    char *start = mmap(top - 4 * PAGE, 4 * PAGE, RW,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN | MAP_FIXED, -1, 0);
    printf("made: %d\n", start == top - 4 * PAGE);
    printf("the page below: %d\n", store(start - 1, 1));
    printf("far below: %d\n", store(start - 50 * PAGE, 2));
    printf("between: %d\n", load(start - 20 * PAGE));
    printf("a read: %d\n", load(start - 60 * PAGE));
    int fd = open("/proc/self/stat", O_RDONLY);
    SHOW(read(fd, start - 70 * PAGE, 10) == 10);
    close(fd);
    SHOW(mprotect(top - PAGE, PAGE, PROT_READ | PROT_GROWSDOWN));
    printf("all of it: %d %d\n", store(start, 1), store(start - 60 * PAGE, 1));
    SHOW(mprotect(top - PAGE, PAGE, RW | PROT_GROWSDOWN | PROT_GROWSUP));
    SHOW(mprotect(top - PAGE, PAGE, RW | PROT_GROWSUP));
    SHOW(mprotect(top - PAGE, PAGE, RW | PROT_GROWSDOWN));
    printf("writable: %d\n", store(start - 60 * PAGE, 1));
    char *plain = anonymous(2);
    SHOW(mprotect(plain, PAGE, RW | PROT_GROWSDOWN));
    SHOW(mprotect(plain, PAGE, 0x40));
    SHOW(mprotect(plain, PAGE, RW | 8));
    SHOW(mprotect(plain + 1, PAGE, RW));
    SHOW(mprotect(plain + 1, 0, RW));
    SHOW(mprotect(plain, 0, 0x40));
    SHOW(mprotect(plain, -PAGE, RW));
    // Too close to a neighbour: no growth. Farther from it than the gap: growth.
    char *close_by = start - 400 * PAGE;
    mmap(close_by, PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    printf("near a neighbour: %d\n", store(close_by + 200 * PAGE, 1));
    printf("code %d\n", signal_code);
    printf("not so near: %d\n", store(close_by + 300 * PAGE, 1));
    SHOW(mmap(NULL, PAGE, RW, MAP_SHARED | MAP_ANONYMOUS | MAP_GROWSDOWN, -1, 0) == MAP_FAILED);
    // Not beyond RLIMIT_STACK.
    struct rlimit limit, small;
    getrlimit(RLIMIT_STACK, &limit);
    small = limit;
    small.rlim_cur = 128 * PAGE;
    mprotect(plain, 2 * PAGE, RW);
    char *other = mmap(NULL, room * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(other, room * PAGE);
    char *end = other + room * PAGE;
    mmap(end - PAGE, PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN | MAP_FIXED, -1, 0);
    setrlimit(RLIMIT_STACK, &small);
    printf("within the limit: %d\n", store(end - 127 * PAGE, 1));
    printf("beyond it: %d\n", store(end - 140 * PAGE, 1));
    setrlimit(RLIMIT_STACK, &limit);
}

static void stack_of_the_program(void) {
    char here[PAGE];
    char *page = (char *)((unsigned long)here & ~(PAGE - 1UL));
    SHOW(mprotect(page, PAGE, RW | PROT_GROWSDOWN));
    SHOW(mprotect(page, PAGE, RW | PROT_GROWSUP));
}

static void advice(void) {
    char *a = anonymous(4);
    memset(a, 7, 4 * PAGE);
    SHOW(madvise(a, PAGE, MADV_DONTNEED));
    printf("%d %d\n", a[0], a[PAGE]);
    SHOW(madvise(a + 1, PAGE, MADV_DONTNEED));
    SHOW(madvise(a, 0, MADV_DONTNEED));
    SHOW(madvise(a, 1, MADV_DONTNEED));
    SHOW(madvise(a, -PAGE, MADV_DONTNEED));
    SHOW(madvise(a, PAGE, 77));
    SHOW(madvise(a, 0, 77));
    SHOW(madvise(a, PAGE, MADV_REMOVE));
    SHOW(madvise(a, PAGE, MADV_FREE));
    munmap(a + PAGE, PAGE);
    memset(a + 2 * PAGE, 7, PAGE);
    SHOW(madvise(a, 4 * PAGE, MADV_DONTNEED));
    printf("behind the hole: %d\n", a[2 * PAGE]);
    SHOW(madvise(a, 4 * PAGE, MADV_WILLNEED));
    SHOW(madvise(a, 4 * PAGE, MADV_RANDOM));
    SHOW(madvise(a, 4 * PAGE, POPULATE_READ));
    SHOW(madvise(a, PAGE, POPULATE_READ));
    SHOW(madvise(a, PAGE, POPULATE_WRITE));
    mprotect(a, PAGE, PROT_READ);
    SHOW(madvise(a, PAGE, POPULATE_READ));
    SHOW(madvise(a, PAGE, POPULATE_WRITE));
    mprotect(a, PAGE, PROT_NONE);
    SHOW(madvise(a, PAGE, POPULATE_READ));
    int fd = memfd_create("advice", 0);
    SHOW(ftruncate(fd, 2 * PAGE));
    char *s = mmap(NULL, 4 * PAGE, RW, MAP_SHARED, fd, 0);
    char *alias = mmap(NULL, 2 * PAGE, PROT_READ, MAP_SHARED, fd, 0);
    char *p = mmap(NULL, 2 * PAGE, RW, MAP_PRIVATE, fd, 0);
    memset(s, 5, 2 * PAGE);
    p[0] = 6;
    SHOW(madvise(s, PAGE, MADV_DONTNEED));
    printf("shared stays: %d\n", s[0]);
    SHOW(madvise(p, PAGE, MADV_DONTNEED));
    printf("private is the file's: %d\n", p[0]);
    SHOW(madvise(s, PAGE, MADV_FREE));
    SHOW(madvise(p, PAGE, MADV_FREE));
    SHOW(madvise(alias, PAGE, MADV_REMOVE));
    SHOW(madvise(p, PAGE, MADV_REMOVE));
    SHOW(madvise(s, PAGE, MADV_REMOVE));
    printf("a hole: %d %d %d\n", s[0], alias[0], s[PAGE]);
    SHOW(madvise(s, PAGE, MADV_WIPEONFORK));
    SHOW(madvise(p, PAGE, MADV_WIPEONFORK));
    SHOW(madvise(s, 2 * PAGE, POPULATE_READ));
    SHOW(madvise(s + 2 * PAGE, PAGE, POPULATE_READ));
    printf("behind the end: %d\n", load(s + 3 * PAGE));
}

static void forks(void) {
    char *a = anonymous(6);
    memset(a, 9, 6 * PAGE);
    SHOW(madvise(a + PAGE, PAGE, MADV_WIPEONFORK));
    SHOW(madvise(a + 2 * PAGE, PAGE, MADV_DONTFORK));
    SHOW(madvise(a + 3 * PAGE, 2 * PAGE, MADV_WIPEONFORK));
    SHOW(madvise(a + 4 * PAGE, PAGE, MADV_KEEPONFORK));
    SHOW(madvise(a + 5 * PAGE, PAGE, MADV_DONTFORK));
    SHOW(madvise(a + 5 * PAGE, PAGE, MADV_DOFORK));
    fflush(stdout);
    if (!fork()) {
        for (int i = 0; i < 6; i++)
            printf("child, page %d: %d\n", i, load(a + i * PAGE));
        // The child's child finds zeros again.
        a[PAGE] = 8;
        fflush(stdout);
        if (!fork()) {
            printf("grandchild: %d %d\n", load(a + PAGE), load(a));
            exit(0);
        }
        wait(NULL);
        exit(0);
    }
    wait(NULL);
    for (int i = 0; i < 6; i++)
        printf("parent, page %d: %d\n", i, load(a + i * PAGE));
    // A child that shares memory has everything.
    a[PAGE] = 4;
    pid_t child = vfork();
    if (!child) {
        a[0] = a[PAGE] + load(a + 2 * PAGE);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    printf("after vfork: %d\n", a[0]);
}

static void moves(void) {
    char *a = anonymous(8);
    for (int i = 0; i < 8; i++)
        a[i * PAGE] = i + 1;
    SHOW(mremap(a + 1, PAGE, PAGE, 0));
    SHOW(mremap(a, PAGE, 0, 0));
    SHOW(mremap(a, PAGE, PAGE, 64));
    SHOW(mremap(a, PAGE, 2 * PAGE, MREMAP_FIXED, a + 4 * PAGE));
    SHOW(mremap(a, 2 * PAGE, 2 * PAGE, MREMAP_FIXED | MREMAP_MAYMOVE, a + PAGE));
    SHOW(mremap(a, 0, PAGE, MREMAP_MAYMOVE));
    SHOW(mremap(a, PAGE, 3 * PAGE, 0));
    SHOW(mremap(a, 2 * PAGE, PAGE, 0) == a);
    printf("given back: %d\n", load(a + PAGE));
    SHOW(mremap(a, 3 * PAGE, 4 * PAGE, MREMAP_MAYMOVE));
    SHOW(mremap(a + PAGE, PAGE, 2 * PAGE, MREMAP_MAYMOVE));
    char *b = mremap(a + 2 * PAGE, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, 0);
    printf("kept: %d %d, moved: %d %d\n", a[2 * PAGE], a[3 * PAGE], b[0], b[PAGE]);
    a[2 * PAGE] = 77;
    printf("its own: %d\n", b[0]);
    char *c = mremap(b, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP,
                     a + 6 * PAGE);
    printf("there: %d, kept: %d %d\n", c == a + 6 * PAGE, b[0], c[0]);
    SHOW(mremap(a + 4 * PAGE, PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, 0));
    int fd = memfd_create("moves", 0);
    ftruncate(fd, 4 * PAGE);
    char *s = mmap(NULL, 2 * PAGE, RW, MAP_SHARED, fd, PAGE);
    s[0] = 1;
    s[PAGE] = 2;
    char *t = mremap(s, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, 0);
    if (t == MAP_FAILED)
        printf("shared: %s\n", strerrorname_np(errno));
    else
        printf("shared: %d %d, %d %d\n", s[0], s[PAGE], t[0], t[PAGE]);
    t = mremap(s, 0, 3 * PAGE, MREMAP_MAYMOVE);
    t[2 * PAGE] = 3;
    char third = 0;
    pread(fd, &third, 1, 3 * PAGE);
    printf("longer than it was: %d %d %d, %d\n", t[0], t[PAGE], t[2 * PAGE], third);
    // Shrinking over several mappings.
    char *d = anonymous(6);
    mprotect(d + 2 * PAGE, PAGE, PROT_READ);
    SHOW(mremap(d, 6 * PAGE, PAGE, 0) == d);
    printf("gone: %d %d\n", load(d + PAGE), load(d + 3 * PAGE));
}

static void breaks(void) {
    char *start = sbrk(0);
    char *base = (char *)(((unsigned long)start + PAGE - 1) & ~(PAGE - 1UL));
    SHOW(brk(base));
    SHOW(brk(base + 100));
    base[99] = 1;
    base[PAGE - 1] = 2;
    SHOW(brk(base + 3));
    SHOW(brk(base + 100));
    printf("within a page: %d %d\n", base[99], base[PAGE - 1]);
    SHOW(brk(base));
    SHOW(brk(base + 3 * PAGE));
    printf("zeros: %d %d\n", base[99], base[PAGE - 1]);
    printf("beyond: %d\n", load(base + 3 * PAGE));
    SHOW(syscall(SYS_brk, 0) == (long)base + 3 * PAGE);
    SHOW(syscall(SYS_brk, PAGE) == (long)base + 3 * PAGE);
    SHOW(syscall(SYS_brk, -1L) == (long)base + 3 * PAGE);
    // In the way, and with a page of distance to it.
    mmap(base + 8 * PAGE, PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    SHOW(brk(base + 9 * PAGE));
    SHOW(brk(base + 8 * PAGE));
    SHOW(brk(base + 7 * PAGE));
    munmap(base + 8 * PAGE, PAGE);
    // A hole in it, and back.
    munmap(base + PAGE, PAGE);
    SHOW(brk(base + 9 * PAGE));
    printf("hole: %d\n", load(base + PAGE));
    SHOW(brk(base));
    SHOW(brk(base + 2 * PAGE));
    printf("whole: %d\n", load(base + PAGE));
    mprotect(base, PAGE, PROT_READ);
    SHOW(brk(base + 3 * PAGE));
    printf("still: %d %d\n", store(base, 1), store(base + 2 * PAGE, 1));
    SHOW(brk(start));
}

static void maps(void) {
    int fd = memfd_create("maps", 0);
    ftruncate(fd, PAGE);
    SHOW(mmap(NULL, 0, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    SHOW(mmap(NULL, PAGE, RW, MAP_ANONYMOUS, -1, 0));
    SHOW(mmap(NULL, PAGE, RW, MAP_SHARED, fd, 1));
    SHOW(syscall(SYS_mmap, NULL, PAGE, RW, MAP_SHARED, fd, -PAGE));
    SHOW(mmap((void *)123, PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
    SHOW(munmap((void *)1, PAGE));
    SHOW(munmap((void *)PAGE, 0));
    SHOW(munmap((void *)(1UL << 46), PAGE));
    SHOW(munmap((void *)PAGE, -1UL));
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    growing();
    stack_of_the_program();
    advice();
    forks();
    moves();
    breaks();
    maps();
    return 0;
}
