// A stack without locks: between the look at the first node and the exchange
// the node is taken, and put back with another below it.
// HUNT fails: exit 1
#include "work.h"
#include <pthread.h>

struct node {
    struct node *next;
    int taken;
};

static struct node nodes[3];
static struct node *head;

static void push(struct node *node) {
    struct node *old = __atomic_load_n(&head, __ATOMIC_ACQUIRE);
    do
        node->next = old;  // DECIDES
    while (!__atomic_compare_exchange_n(&head, &old, node, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));  // DECIDES
}

static struct node *pop(void) {
    struct node *old = __atomic_load_n(&head, __ATOMIC_ACQUIRE);
    struct node *next;
    do {
        if (!old)
            return 0;
        next = old->next;  // DECIDES
    } while (!__atomic_compare_exchange_n(&head, &old, next, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));  // DECIDES
    return old;
}

static void *taker(void *unused) {
    (void)unused;
    work(200);
    struct node *node = pop();
    if (node)
        __atomic_fetch_add(&node->taken, 1, __ATOMIC_RELAXED);
    return 0;
}

static void *shuffler(void *unused) {
    (void)unused;
    work(200);
    struct node *first = pop();
    struct node *second = pop();
    if (second)
        __atomic_fetch_add(&second->taken, 1, __ATOMIC_RELAXED);
    if (first)
        push(first);
    return 0;
}

int main(void) {
    for (int i = 2; i >= 0; i--)
        push(&nodes[i]);
    pthread_t threads[2];
    pthread_create(&threads[0], 0, taker, 0);
    pthread_create(&threads[1], 0, shuffler, 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], 0);
    struct node *node;
    int wrong = 0;
    while ((node = pop()))
        if (++node->taken > 1)
            wrong = 1;
    return wrong;
}
