#include "two.h"
struct node {
    struct node *next;
    int value;
};
static struct node *head;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *push(void *x) {
    for (int i = 0; i < 20; i++) {
        struct node *node = malloc(sizeof *node);
        node->value = i;
        pthread_mutex_lock(&lock);
        node->next = head;
        head = node;
        pthread_mutex_unlock(&lock);
    }
    return x;
}
int main(void) {
    run(push, push);
    int sum = 0;
    for (struct node *node = head; node; node = node->next)
        sum += node->value;
    printf("%d\n", sum);
}
