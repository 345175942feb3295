// Two variables on one line: only one of them does harm.
#include <pthread.h>
#include <stdio.h>

int value = 7;
int *where = &value;
int hits, got;

void *reader(void *unused) {
    hits++; if (where) got = *where;       // RACE hits: k-witness-harmless RACE where: spec-violated crash
    return 0;
}

void *remover(void *unused) {
    hits++; where = 0;                     // RACE hits: k-witness-harmless RACE where: spec-violated crash
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
