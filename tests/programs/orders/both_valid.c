// ORDERS no-state-change
// Paper 000, table 2: both values are valid. The reader only looks where to
// begin; wherever that is, it ends with the same.
#include <pthread.h>
#include <stdio.h>

static volatile int hint;
static int table[8] = {3, 3, 3, 3, 3, 3, 3, 3};

static int look(void) {
    int from = hint; // RACE
    return table[from & 7];
}

static void *reader(void *unused) {
    long sum = 0;
    for (int i = 0; i < 200; i++) sum += look();
    return sum == 600 ? unused : NULL;
}

static void *writer(void *unused) {
    for (int i = 0; i < 200; i++) hint = i; // RACE
    return unused;
}

int main(void) {
    pthread_t one, two;
    pthread_create(&one, NULL, reader, NULL);
    pthread_create(&two, NULL, writer, NULL);
    pthread_join(one, NULL);
    pthread_join(two, NULL);
    puts("done");
    return 0;
}
