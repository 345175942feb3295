#include "two.h"
#include <stdatomic.h>
struct node {
    int value;
    struct node *next;
};
_Atomic(struct node *) top;
static void *pusher(void *arg) {
    for (int i = 0; i < 50; i++) {
        struct node *fresh = malloc(sizeof *fresh);
        fresh->value = i;
        fresh->next = atomic_load(&top);
        while (!atomic_compare_exchange_weak(&top, &fresh->next, fresh))
            ;
    }
    return arg;
}
static void *popper(void *arg) {
    long sum = 0;
    for (int got = 0; got < 50;) {
        struct node *all = atomic_exchange(&top, 0);
        if (!all)
            sched_yield();
        while (all) {
            struct node *next = all->next;
            sum += all->value;
            free(all);
            all = next;
            got++;
        }
    }
    printf("%ld\n", sum);
    return arg;
}
int main(void) {
    run(pusher, popper);
    return 0;
}
