/* What a signal frame says of a page fault: the processor's error code, also
   of pages that nobody but a debugger or a checksum would have looked at. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

static sigjmp_buf back;

static void told(int number, siginfo_t *info, void *context)
{
    ucontext_t *frame = context;
    printf("signal %d code %d error %lld trap %lld\n", number, info->si_code,
           (long long)frame->uc_mcontext.gregs[REG_ERR],
           (long long)frame->uc_mcontext.gregs[REG_TRAPNO]);
    siglongjmp(back, 1);
}

static void try(const char *what, volatile char *page, int writes)
{
    printf("%s, %s: ", what, writes ? "write" : "read");
    if (sigsetjmp(back, 1) == 0) {
        if (writes)
            *page = 1;
        else
            (void)*page;
        printf("done\n");
    }
}

int main(void)
{
    struct sigaction action = {.sa_sigaction = told, .sa_flags = SA_SIGINFO};
    size_t size = 4096;
    char *page;
    FILE *file = tmpfile();

    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(page, 7, size);
    mprotect(page, size, PROT_READ);
    try("read only", page, 1);
    try("read only", page, 0);
    mprotect(page, size, PROT_NONE);
    try("no access", page, 1);
    try("no access", page, 0);
    mprotect(page, size, PROT_READ);
    /* Time for whoever looks at pages now and then. */
    for (volatile long spin = 0; spin < 3000000; spin++)
        ;
    try("read only again", page, 1);
    munmap(page, size);
    try("unmapped", page, 1);
    try("unmapped", page, 0);
    page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
    try("behind the end of a file", page, 1);
    try("behind the end of a file", page, 0);
    try("null", NULL, 0);
    return 0;
}
