// Stores of all kinds through wild pointers into addresses where a program
// has nothing and the vm may have: each must fault as natively, with the same
// address and cause, and a repeated store of nothing must not.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <ucontext.h>
static sigjmp_buf back;
static siginfo_t info;
static long trap, error;
static void handler(int signal, siginfo_t *said, void *context) {
    (void)signal;
    info = *said;
    trap = ((ucontext_t *)context)->uc_mcontext.gregs[REG_TRAPNO];
    error = ((ucontext_t *)context)->uc_mcontext.gregs[REG_ERR];
    siglongjmp(back, 1);
}
static void word(uint64_t at) {
    *(volatile uint64_t *)at = 1;
}
static void byte(uint64_t at) {
    ((volatile char *)at)[5] = 1;
}
static void element(uint64_t at) {
    volatile uint32_t *start = (void *)(at & ~0xffffull);
    start[(at & 0xffff) >> 2] = 7;
}
static void twice(uint64_t at) {
    __asm__ volatile("lea -0x40000000(%0), %0\n movq $1, 0x40000000(%0)\n movq $1, 0x40000008(%0)"
                     : "+r"(at)::"memory");
}
static void locked(uint64_t at) {
    __asm__ volatile("lock addq $1, (%0)" ::"r"(at) : "memory");
}
static void vector(uint64_t at) {
    __asm__ volatile("movups %%xmm0, (%0)" ::"r"(at) : "memory");
}
static void repeated(uint64_t at, long count) {
    __asm__ volatile("rep stosb" : "+D"(at), "+c"(count) : "a"(0) : "memory");
}
static void some(uint64_t at) {
    repeated(at, 100);
}
static void none(uint64_t at) {
    repeated(at, 0);
}
static void many(uint64_t at) {
    repeated(at, 1000000);
}
int main(void) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, 0);
    sigaction(SIGBUS, &action, 0);
    static const uint64_t wild[] = {
        0x600000000000, 0x600000000100, 0x600000010008, 0x600000200000,     0x602000001000,     0x680000000000,
        0x540000001000, 0x550000001000, 0x57fffffff000, 0xdead600000000000, 0xffff600000000000, 0xffff800000000000,
    };
    static const struct {
        const char *name;
        void (*store)(uint64_t);
    } kinds[] = {
        {"word", word},     {"byte", byte}, {"element", element}, {"twice", twice}, {"locked", locked},
        {"vector", vector}, {"some", some}, {"none", none},       {"many", many},
    };
    for (unsigned i = 0; i < sizeof wild / sizeof *wild; i++)
        for (unsigned k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            printf("%s at %lx: ", kinds[k].name, wild[i]);
            if (!sigsetjmp(back, 1)) {
                kinds[k].store(wild[i]);
                puts("stored");
            } else
                printf("signal %d code %d address %p trap %ld error %ld\n", info.si_signo, info.si_code,
                       info.si_addr, trap, error);
        }
    return 0;
}
