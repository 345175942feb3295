// LABELS answer: uninitialised-read
// A block is handed over before anything is written to it.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

int *answer;
int seen;

void *reader(void *unused) {
    seen = *answer;                 // RACE answer: output-differs output
    return 0;
}

int main(void) {
    pthread_t thread;
    answer = malloc(sizeof *answer);
    pthread_create(&thread, 0, reader, 0);
    *answer = 42;                   // RACE answer: output-differs output
    pthread_join(thread, 0);
    printf("%d\n", seen);
    return 0;
}
