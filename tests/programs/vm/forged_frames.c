// Signal handlers that change what they return to: segment selectors, reserved bits,
// headers of the extended state, pointers to where the vm has its memory. And
// returns from frames that no handler got. Each in a process of its own, which may
// end in any way of its own; the first one prints how many ended.
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

// The vm's context, its code cache, what is nobody's.
static const uint64_t PLACES[] = {0x600000000000, 0x600004000000, 0x8000000000000000};
#define COUNT(list) ((int)(sizeof(list) / sizeof *(list)))
#define FORGERIES 30
#define FRAMES 8

static int forgery;
static uint64_t place;
static char *edge;

static void forge(int signal, siginfo_t *info, void *context) {
    (void)info;
    if (signal != SIGUSR1)
        _exit(3);
    ucontext_t *frame = context;
    greg_t *general = frame->uc_mcontext.gregs;
    uint16_t *selectors = (uint16_t *)&general[REG_CSGSFS];
    struct _libc_fpstate *vector = frame->uc_mcontext.fpregs;
    uint32_t *software = (uint32_t *)((char *)vector + 464);
    uint64_t *header = (uint64_t *)((char *)vector + 512);
    switch (forgery) {
    case 0: general[REG_RIP] = place; break;
    case 1: general[REG_RSP] = place; break;
    case 2: selectors[0] = 0x23; break;
    case 3: selectors[0] = 0x10; break;
    case 4: selectors[0] = 0; break;
    case 5: selectors[0] = 7; break;
    case 6: selectors[3] = 0x18; break;
    case 7: selectors[3] = 0; break;
    case 8: selectors[1] = selectors[2] = 0xffff; break;
    case 9: vector->mxcsr = ~0u; break;
    case 10: header[0] = ~0ull; break;
    case 11: header[1] = ~0ull; break;
    case 12: header[2] = 5; break;
    case 13: frame->uc_mcontext.fpregs = (void *)place; break;
    case 14: frame->uc_mcontext.fpregs = (void *)((char *)vector + 1); break;
    case 15: frame->uc_mcontext.fpregs = NULL; break;
    case 16: software[0] = 0; break;
    case 17: software[1] = 0x7fffffff; break;
    case 18: software[4] = 0x7fffffff; break;
    case 19: memset(software + 2, 0xff, 8); break;
    case 20: general[REG_EFL] = 0xffffffff & ~0x100; break;
    case 21: frame->uc_stack = (stack_t){.ss_sp = (void *)place, .ss_size = 1 << 16}; break;
    case 22: frame->uc_flags = ~0ul; break;
    case 23: frame->uc_flags = 0; break;
    case 24:
        // At the end of a mapping, too short for what its header says.
        memcpy(edge - 512, vector, 512);
        frame->uc_mcontext.fpregs = (void *)(edge - 512);
        break;
    case 25: software[4] = 576; break;
    case 26: vector->cwd = vector->swd = 0xffff; break;
    case 27: memset(&frame->uc_sigmask, 0xff, 8); break;
    case 28: memset(vector, 0xff, 576); break;
    case 29: general[REG_EFL] |= 0x400; break;
    }
}

static void return_from(uint64_t frame) {
    __asm__ volatile("mov %0, %%rsp; mov $15, %%eax; syscall; hlt" ::"r"(frame) : "memory");
}

static void try_frame(int number) {
    switch (number) {
    case 0: return_from(place); break;
    case 1: return_from(place - 100); break;
    case 2: return_from((uint64_t)edge - 16); break;
    case 3: {
        stack_t stack = {.ss_sp = (void *)place, .ss_size = 1 << 20};
        sigaltstack(&stack, NULL);
        raise(SIGUSR1);
        break;
    }
    case 4: {
        stack_t stack = {.ss_sp = (void *)(place - 4096), .ss_size = 1 << 20};
        sigaltstack(&stack, NULL);
        raise(SIGUSR1);
        break;
    }
    case 5:
        signal(SIGUSR2, (void (*)(int))place);
        raise(SIGUSR2);
        break;
    case 6: {
        // Where the handler returns to.
        struct {
            void *handler;
            uint64_t flags;
            uint64_t restorer;
            uint64_t mask;
        } action = {forge, 0x04000000 | SA_SIGINFO, place, 0};
        forgery = -1;
        syscall(SYS_rt_sigaction, SIGUSR1, &action, NULL, 8);
        raise(SIGUSR1);
        break;
    }
    case 7:
        __asm__ volatile("mov %0, %%rsp; push %%rax" ::"r"(place + 4096) : "memory");
        break;
    }
}

static void child(int number) {
    struct sigaction action = {.sa_sigaction = forge, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    for (int signal = SIGILL; signal <= SIGSEGV; signal++)
        if (signal != SIGKILL && signal != SIGABRT)
            sigaction(signal, &action, NULL);
    stack_t stack = {.ss_sp = malloc(1 << 20), .ss_size = 1 << 20};
    sigaltstack(&stack, NULL);
    forgery = number;
    if (number < FORGERIES)
        raise(SIGUSR1);
    else
        try_frame(number - FORGERIES);
    _exit(4);
}

int main(void) {
    edge = (char *)mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) + 4096;
    munmap(edge, 4096);
    int ended = 0;
    for (int where = 0; where < COUNT(PLACES); where++) {
        place = PLACES[where];
        for (int number = 0; number < FORGERIES + FRAMES; number++) {
            pid_t pid = fork();
            if (pid == 0)
                child(number);
            int status;
            waitpid(pid, &status, 0);
            int own = WIFSIGNALED(status) || WEXITSTATUS(status) == 3 || WEXITSTATUS(status) == 4;
            if (own)
                ended++;
            else
                printf("%d at %lx: exit %d\n", number, (long)place, WEXITSTATUS(status));
        }
    }
    printf("%d of %d ended\n", ended, COUNT(PLACES) * (FORGERIES + FRAMES));
    return 0;
}
