// SIGSEGV handlers that repair and resume, and changes to the context.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

static char *page;
static int faults;
static uintptr_t address, trap, error;
static long rip_delta;
extern char faulting[], resumed[];

static void repair(int sig, siginfo_t *info, void *context) {
    ucontext_t *uc = context;
    faults++;
    address = (uintptr_t)info->si_addr - (uintptr_t)page;
    trap = uc->uc_mcontext.gregs[REG_TRAPNO];
    /* Bit 0, was the page in memory, is not the program's doing. */
    error = uc->uc_mcontext.gregs[REG_ERR] & ~1;
    if (sig == SIGSEGV && info->si_code == SEGV_ACCERR)
        mprotect(page, 4096, PROT_READ | PROT_WRITE);
}

static void skip(int sig, siginfo_t *info, void *context) {
    (void)sig; (void)info;
    ucontext_t *uc = context;
    rip_delta = uc->uc_mcontext.gregs[REG_RIP] - (long)faulting;
    uc->uc_mcontext.gregs[REG_RIP] = (long)resumed;
    uc->uc_mcontext.gregs[REG_RBX] = 0x1234;
}

static sigjmp_buf back;
static int jump_code;
static void leap(int sig, siginfo_t *info, void *context) {
    (void)context;
    jump_code = info->si_code;
    siglongjmp(back, sig);
}

static void set(int sig, void (*handler)(int, siginfo_t *, void *)) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = handler;
    action.sa_flags = SA_SIGINFO;
    sigaction(sig, &action, NULL);
}

int main(void) {
    page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    set(SIGSEGV, repair);
    page[77] = 5;
    printf("repaired: %d faults, value %d, offset %lu, trap %lu, error %lu\n", faults, page[77],
           address, trap, error);

    set(SIGSEGV, skip);
    long rbx;
    __asm__ volatile("xor %%ebx, %%ebx\n\t"
                     "xor %%eax, %%eax\n"
                     ".globl faulting\nfaulting:\n\t"
                     "mov (%%rax), %%rax\n\t"
                     "mov $1, %%ebx\n"
                     ".globl resumed\nresumed:\n\t"
                     "mov %%rbx, %0"
                     : "=r"(rbx) : : "rax", "rbx", "memory");
    printf("skipped: delta %ld rbx %#lx\n", rip_delta, rbx);

    set(SIGSEGV, leap);
    set(SIGFPE, leap);
    set(SIGILL, leap);
    set(SIGTRAP, leap);
    set(SIGBUS, leap);
    volatile int zero = 0, *null = NULL;
    int sig;
    if ((sig = sigsetjmp(back, 1)) == 0) *null = 1;
    printf("null: %d code %d\n", sig, jump_code);
    if ((sig = sigsetjmp(back, 1)) == 0) zero = 1 / zero;
    printf("division: %d code %d\n", sig, jump_code);
    if ((sig = sigsetjmp(back, 1)) == 0) __asm__ volatile("ud2");
    printf("illegal: %d code %d\n", sig, jump_code);
    if ((sig = sigsetjmp(back, 1)) == 0) __asm__ volatile("int3");
    printf("trap: %d code %d\n", sig, jump_code);
    if ((sig = sigsetjmp(back, 1)) == 0) *(volatile int *)0x8000000000000000 = 1;
    printf("non-canonical: %d code %d\n", sig, jump_code);
    if ((sig = sigsetjmp(back, 1)) == 0) ((void (*)(void))(uintptr_t)0x10)();
    printf("jump to nowhere: %d code %d\n", sig, jump_code);
    if ((sig = sigsetjmp(back, 1)) == 0) ((void (*)(void))page)();
    printf("jump to data: %d code %d\n", sig, jump_code);
    if ((sig = sigsetjmp(back, 1)) == 0) __asm__ volatile("hlt");
    printf("privileged: %d code %d\n", sig, jump_code);
    return 0;
}
