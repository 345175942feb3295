// identity: output as natively
// flags: -lm
// The x87 state in memory, with the pointers to the last instruction and
// operand: those lie in the vm's code cache, whose layout is not the guest's
// business, so memory must be the same however code was translated.
#include <fenv.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <ucontext.h>

static char environment[28], old_state[108], state[512] __attribute__((aligned(16))),
    extended[4096] __attribute__((aligned(64)));
static ucontext_t here;

static void *work(void *argument) {
    volatile long double product = 1;
    for (int i = 1; i < 3000; i++) {
        product = product * 1.0001L + 0.5L;
        if (i % 500 == 0) {
            __asm__ volatile("fnstenv %0; fldenv %0" : "+m"(environment));
            __asm__ volatile("fnsave %0; frstor %0" : "+m"(old_state));
            __asm__ volatile("fxsave64 %0" : "=m"(state));
            __asm__ volatile("xsave64 %0" : "=m"(extended) : "a"(3), "d"(0));
            fenv_t saved;
            feholdexcept(&saved);
            fesetenv(&saved);
            getcontext(&here);
        }
    }
    if (argument) *(long double *)argument = product;
    return NULL;
}

int main(void) {
    long double one, two;
    pthread_t thread;
    memset(extended, 0, sizeof extended);
    work(&one);
    pthread_create(&thread, NULL, work, &two);
    pthread_join(thread, NULL);
    unsigned short control;
    memcpy(&control, environment, 2);
    printf("%.15Lg %d %x\n", one, one == two, control);
    return 0;
}
