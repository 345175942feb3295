// With the flag that checks alignment set, by popf and by returning from a handler:
// calls, branches, atomic operations and system calls on aligned memory go on as ever.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#define CHECKS_ALIGNMENT 0x40000
#define CLEAR "pushf; andl $~0x40000, (%%rsp); popf;"

static void set(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] |= CHECKS_ALIGNMENT;
}

static long counted(void) {
    long sum = 0, count = 300000;
    __asm__ volatile("1: add $3, %0; call 2f; jmp 3f;"
                     "2: lock addq $1, (%%rsp); lock subq $1, (%%rsp); ret;"
                     "3: dec %1; jnz 1b; mov $39, %%eax; syscall;" CLEAR
                     : "+r"(sum), "+r"(count)
                     :
                     : "rax", "rcx", "r11", "cc", "memory");
    return sum;
}

int main(void) {
    __asm__ volatile("pushf; orl $0x40000, (%%rsp); popf" ::: "cc", "memory");
    long one = counted();
    struct sigaction action = {.sa_sigaction = set, .sa_flags = SA_SIGINFO};
    sigaction(SIGUSR1, &action, NULL);
    long self = getpid(), other = 0, count = 300000;
    __asm__ volatile("mov %2, %%rdi; mov $10, %%esi; mov $62, %%eax; syscall;"
                     "1: add $3, %0; call 2f; jmp 3f;"
                     "2: ret;"
                     "3: dec %1; jnz 1b;" CLEAR
                     : "+r"(other), "+r"(count)
                     : "r"(self)
                     : "rax", "rcx", "rdi", "rsi", "r11", "cc", "memory");
    printf("%ld %ld\n", one, other);
    return 0;
}
