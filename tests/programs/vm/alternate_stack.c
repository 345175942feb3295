// A stack overflow handled on an alternate stack.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static sigjmp_buf back;
static char *stack;
static int on_stack, flags_inside;

static void overflow(int sig, siginfo_t *info, void *context) {
    (void)info; (void)context;
    char here;
    stack_t now;
    sigaltstack(NULL, &now);
    flags_inside = now.ss_flags;
    on_stack = &here >= stack && &here < stack + 65536;
    siglongjmp(back, sig);
}

static int deep(int n) {
    volatile char room[4096];
    memset((char *)room, n, sizeof room);
    return n == -1 ? 0 : deep(n + 1) + room[17];
}

int main(void) {
    stack = malloc(65536);
    stack_t alternate = {.ss_sp = stack, .ss_size = 65536};
    sigaltstack(&alternate, NULL);
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = overflow;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, NULL);
    for (int i = 0; i < 3; i++) {
        int sig = sigsetjmp(back, 1);
        if (sig == 0) deep(0);
        printf("overflow %d: signal %d on stack %d flags %d\n", i, sig, on_stack, flags_inside);
    }
    stack_t now;
    sigaltstack(NULL, &now);
    printf("outside: flags %d\n", now.ss_flags);
    return 0;
}
