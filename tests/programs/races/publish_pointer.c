// MISSED at stripped: a check of a flag looks like an acquire load there.
#include "two.h"
struct node {
    int value;
    struct node *next;
};
struct node *volatile head;
static void *writer(void *arg) {
    struct node *fresh = malloc(sizeof *fresh);
    fresh->value = 8; // RACE node
    fresh->next = 0;
    head = fresh; // RACE head
    return arg;
}
static void *reader(void *arg) {
    struct node *seen;
    while (!(seen = head)) // RACE head
        sched_yield();
    printf("%d\n", seen->value); // RACE node
    return arg;
}
int main(void) {
    run(reader, writer);
    return 0;
}
