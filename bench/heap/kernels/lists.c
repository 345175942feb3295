// Lists that are built, walked and freed: an allocation every few accesses.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

struct node {
    struct node *next;
    long value;
};

int first;

static void *work(void *number) {
    first = (int)(long)number; // the race; everything else comes after it
    long sum = 0;
    for (int round = 0; round < 60; round++) {
        struct node *list = 0;
        for (int index = 0; index < 2000; index++) {
            struct node *node = malloc(sizeof *node);
            node->value = index;
            node->next = list;
            list = node;
        }
        for (int times = 0; times < 20; times++)
            for (struct node *node = list; node; node = node->next)
                sum += node->value ^ times;
        while (list) {
            struct node *next = list->next;
            free(list);
            list = next;
        }
    }
    return (void *)sum;
}

int main(void) {
    pthread_t one, two;
    pthread_create(&one, 0, work, (void *)1);
    pthread_create(&two, 0, work, (void *)2);
    pthread_join(one, 0);
    pthread_join(two, 0);
    printf("%d\n", first);
    return 0;
}
