// mlock and its family: limits, holes, what is refused where memory is locked,
// and what a child has of it.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096

static void show(const char *what, int result) {
    printf("%s: %d %s\n", what, result, result < 0 ? strerrorname_np(errno) : "");
}

static long locked(void) {
    char line[256];
    long kilobytes = -1;
    FILE *status = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, status))
        sscanf(line, "VmLck: %ld", &kilobytes);
    fclose(status);
    return kilobytes;
}

int main(void) {
    setvbuf(stdout, NULL, _IONBF, 0);
    // As somebody whom limits bind, whoever started it.
    if (geteuid() == 0 && setuid(65534) != 0)
        return 1;
    struct rlimit limit = {8 * PAGE, 8 * PAGE};
    show("limit", setrlimit(RLIMIT_MEMLOCK, &limit));
    char *memory = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    show("lock", mlock(memory + 10, 3 * PAGE));
    printf("locked %ld kB\n", locked());
    show("the same", mlock(memory, 4 * PAGE));
    show("up to the limit", mlock(memory, 8 * PAGE));
    show("one more", mlock(memory + 8 * PAGE, 1));
    printf("locked %ld kB\n", locked());
    show("advice", madvise(memory, PAGE, MADV_DONTNEED));
    show("advice elsewhere", madvise(memory + 9 * PAGE, PAGE, MADV_DONTNEED));
    show("invalidate", msync(memory, PAGE, MS_INVALIDATE));
    show("synchronise", msync(memory, PAGE, MS_SYNC));
    show("both ways", msync(memory, PAGE, MS_SYNC | MS_ASYNC));
    if (fork() == 0) {
        printf("child: locked %ld kB\n", locked());
        _exit(0);
    }
    wait(NULL);
    show("unlock a part", munlock(memory + PAGE, PAGE));
    printf("locked %ld kB\n", locked());
    munmap(memory + 2 * PAGE, PAGE);
    printf("locked %ld kB\n", locked());
    show("across a hole", munlock(memory, 4 * PAGE));
    printf("locked %ld kB\n", locked());
    show("unlock all", munlockall());
    show("across a hole", mlock(memory, 4 * PAGE));
    printf("locked %ld kB\n", locked());
    munlockall();
    show("no length", mlock(memory, 0));
    show("over the end", mlock(memory, (size_t)-PAGE));
    char *forbidden = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    show("forbidden", mlock(forbidden, PAGE));
    munlockall();
    show("mlock2", mlock2(memory, PAGE, MLOCK_ONFAULT));
    show("mlock2 otherwise", mlock2(memory, PAGE, 6));
    munlockall();
    show("all of it", mlockall(MCL_CURRENT));
    show("nothing", mlockall(0));
    show("unknown", mlockall(64));
    show("only on fault", mlockall(MCL_ONFAULT));
    show("later", mlockall(MCL_FUTURE));
    void *small = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    show("a page later", small == MAP_FAILED ? -1 : 0);
    void *large = mmap(NULL, 9 * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    show("too much later", large == MAP_FAILED ? -1 : 0);
    printf("locked %ld kB\n", locked());
    munlockall();
    large = mmap(NULL, 9 * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED, -1, 0);
    show("mapped locked", large == MAP_FAILED ? -1 : 0);
    unsigned char present[4] = {0};
    mlock(memory + 4 * PAGE, 2 * PAGE);
    show("mincore", mincore(memory + 4 * PAGE, 2 * PAGE, present));
    printf("present %d %d\n", present[0] & 1, present[1] & 1);
    show("mincore of a hole", mincore(memory, 4 * PAGE, present));
    show("mincore in between", mincore(memory + 1, PAGE, present));
    limit.rlim_cur = limit.rlim_max = 0;
    setrlimit(RLIMIT_MEMLOCK, &limit);
    show("not at all", mlock(memory, PAGE));
    show("nor all", mlockall(MCL_FUTURE));
    return 0;
}
