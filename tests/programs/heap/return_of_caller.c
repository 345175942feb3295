// The frame that is run over is entered after the race, by a function it has
// called; the program ends before it would return there.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

long number = 4;

static void clear(long *words, long count) {
    for (long index = 0; index < count; index++)
        words[index] = 0;
    if (count > 4) {
        puts("done");
        exit(0);
    }
}

static void collect(long count) {
    long words[4];
    clear(words, count);
}

void *worker(void *unused) {
    long count = number;        // RACE number: spec-violated memory-error return-address-overwritten
    collect(count);
    return 0;
}

void *other(void *unused) {
    number = 12;                // RACE number: spec-violated memory-error return-address-overwritten
    return 0;
}

int main(void) {
    pthread_t one, two;
    pthread_create(&one, 0, worker, 0);
    pthread_create(&two, 0, other, 0);
    pthread_join(one, 0);
    pthread_join(two, 0);
    puts("done");
    return 0;
}
