// An index that may have been decremented before it is used.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

char *stack;
int top = 0;

void *pusher(void *unused) {
    stack[top] = 1;                 // RACE top: spec-violated memory-error heap-underflow
    return 0;
}

void *popper(void *unused) {
    top = -1;                       // RACE top: spec-violated memory-error heap-underflow
    return 0;
}

int main(void) {
    pthread_t one, two;
    stack = malloc(40);
    pthread_create(&one, 0, pusher, 0);
    pthread_create(&two, 0, popper, 0);
    pthread_join(one, 0);
    pthread_join(two, 0);
    puts("done");
    return 0;
}
