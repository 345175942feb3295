#include "two.h"
struct node {
    struct node *next;
    int value;
};
static struct node *head;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *push(void *x) {
    for (int i = 0; i < 200; i++) {
        struct node *node = malloc(sizeof *node);
        node->value = i; // RACE value
        pthread_mutex_lock(&lock);
        node->next = head;
        head = node; // RACE head
        pthread_mutex_unlock(&lock);
    }
    return x;
}
static void *peek(void *x) {
    long sum = 0;
    for (int i = 0; i < 200; i++) {
        struct node *node = head; // RACE head
        if (node)
            sum += node->value; // RACE value
    }
    return x + (sum & 1);
}
int main(void) {
    run(push, peek);
    puts("done");
}
