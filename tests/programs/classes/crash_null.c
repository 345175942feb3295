// A pointer is taken away between the check and the use.
#include <pthread.h>
#include <stdio.h>

int value = 7;
int *where = &value;
int got;

void *reader(void *unused) {
    if (where)                             // RACE check: spec-violated crash
        got = *where;                      // RACE use: spec-violated crash
    return 0;
}

void *remover(void *unused) {
    where = 0;                             // RACE check: spec-violated crash RACE use: spec-violated crash
    return 0;
}

int main(void) {
    pthread_t one, two;
    pthread_create(&one, 0, reader, 0);
    pthread_create(&two, 0, remover, 0);
    pthread_join(one, 0);
    pthread_join(two, 0);
    printf("done\n");
    return 0;
}
