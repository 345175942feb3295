// makecontext and swapcontext: two coroutines hand a number to each other.
// identity: output as natively
#include <stdio.h>
#include <ucontext.h>

static ucontext_t home, one, two;
static char stacks[2][32768];
static long number = 1;

static void triple(void) {
    for (int i = 0; i < 12; i++) {
        number *= 3;
        swapcontext(&one, &two);
    }
}

static void add(int by) {
    for (;;) {
        number += by;
        swapcontext(&two, &one);
    }
}

int main(void) {
    getcontext(&one);
    one.uc_stack.ss_sp = stacks[0];
    one.uc_stack.ss_size = sizeof stacks[0];
    one.uc_link = &home;
    makecontext(&one, triple, 0);
    getcontext(&two);
    two.uc_stack.ss_sp = stacks[1];
    two.uc_stack.ss_size = sizeof stacks[1];
    two.uc_link = &home;
    makecontext(&two, (void (*)(void))add, 1, 5);
    swapcontext(&home, &one);
    printf("number %ld\n", number);
    return 0;
}
