// Vector and x87 registers survive a handler that uses them, at any point.
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <ucontext.h>

static volatile int ticks;
static volatile double sink;

static void handler(int sig, siginfo_t *info, void *context) {
    (void)sig; (void)info;
    ucontext_t *uc = context;
    ticks++;
    double x = ticks;
    for (int i = 0; i < 10; i++) x = x * 1.5 + 0.25;
    sink = x;
    __asm__ volatile("pxor %%xmm0,%%xmm0; pxor %%xmm5,%%xmm5; pxor %%xmm15,%%xmm15; fninit" ::: "xmm0", "xmm5", "xmm15");
    if (uc->uc_mcontext.fpregs == NULL) sink = 0;
}

int main(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = handler;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    sigaction(SIGALRM, &action, NULL);
    struct itimerval every = {{0, 500}, {0, 500}}, none = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &every, NULL);
    double sum = 0;
    long double extended = 1;
    long integer = 0;
    while (ticks < 20) {
        sum = 0;
        extended = 1;
        integer = 0;
        for (int i = 1; i < 20000; i++) {
            sum += 1.0 / i;
            extended *= 1.0001L;
            integer = integer * 31 + i;
        }
    }
    setitimer(ITIMER_REAL, &none, NULL);
    printf("%.15g %.15Lg %ld\n", sum, extended, integer);
    return 0;
}
