// ORDERS harmful
// The object is freed, and its memory used for something else, while another
// thread still reads it.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct message {
    volatile long length;
    char text[40];
};

static struct message *volatile inbox[60];

static void *reader(void *unused) {
    long total = 0;
    for (int i = 0; i < 60; i++) total += inbox[i]->length; // RACE
    return (void *)total;
}

static void *closer(void *unused) {
    for (int i = 0; i < 60; i++) {
        inbox[i]->length = -1; // RACE
        free(inbox[i]); // RACE
    }
    return unused;
}

int main(void) {
    pthread_t one, two;
    for (int i = 0; i < 60; i++) {
        inbox[i] = malloc(sizeof *inbox[i]);
        inbox[i]->length = 5;
    }
    pthread_create(&one, NULL, reader, NULL);
    pthread_create(&two, NULL, closer, NULL);
    void *total;
    pthread_join(one, &total);
    pthread_join(two, NULL);
    printf("%ld\n", (long)total);
    return 0;
}
