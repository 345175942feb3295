// Many objects through one helper: of the elements of an array one is followed,
// of two variables one.
#include <pthread.h>
#include <stdio.h>

int value = 7;
int *slots[9] = { &value, &value, &value, &value, &value, &value, &value, &value, &value };
int *alone = &value, *followed = &value;
long got;

static void put(int **slot, int *to) {
    *slot = to;
}

static int *get(int **slot) {
    return *slot;
}

void *reader(void *unused) {
    for (int i = 0; i < 9; i++) {
        int *slot = get(&slots[i]);        // RACE slots: spec-violated crash
        got += i == 5 ? *slot : slot != 0;
    }
    got += get(&alone) != 0;               // RACE alone: k-witness-harmless
    got += *get(&followed);                // RACE followed: spec-violated crash
    return 0;
}

void *remover(void *unused) {
    for (int i = 0; i < 9; i++)
        put(&slots[i], 0);                 // RACE slots: spec-violated crash
    put(&alone, 0);                        // RACE alone: k-witness-harmless
    put(&followed, 0);                     // RACE followed: spec-violated crash
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
