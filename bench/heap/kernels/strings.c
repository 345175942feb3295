// Strings that are built, compared and sorted through the C library.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int first;

static int compare(const void *one, const void *other) {
    return strcmp(*(char *const *)one, *(char *const *)other);
}

static void *work(void *number) {
    first = (int)(long)number; // the race; everything else comes after it
    for (int round = 0; round < 25; round++) {
        char *words[800];
        for (int index = 0; index < 800; index++) {
            char text[40];
            snprintf(text, sizeof text, "word %d of %d", (index * 7919) % 800, round);
            words[index] = strdup(text);
        }
        qsort(words, 800, sizeof *words, compare);
        for (int index = 0; index < 800; index++)
            free(words[index]);
    }
    return 0;
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
