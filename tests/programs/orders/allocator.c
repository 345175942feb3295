// ORDERS no-state-change state-change
// Two threads take identical objects from one list: which of them each gets
// differs between the orders, what they hold does not.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

struct node {
    long kind;
    char data[40];
};

static struct node *volatile slot;

static void *take(void *unused) {
    for (int i = 0; i < 40; i++) {
        struct node *mine = calloc(1, sizeof *mine);
        mine->kind = 4;
        slot = mine; // RACE
    }
    return unused;
}

int main(void) {
    pthread_t one, two;
    pthread_create(&one, NULL, take, NULL);
    pthread_create(&two, NULL, take, NULL);
    pthread_join(one, NULL);
    pthread_join(two, NULL);
    printf("%ld\n", slot->kind);
    return 0;
}
