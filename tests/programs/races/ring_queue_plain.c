#include "two.h"
enum { SIZE = 8 };
int slots[SIZE];
volatile unsigned head, tail;
static void *producer(void *arg) {
    for (int i = 0; i < 50;) {
        unsigned t = tail;
        if (t - head < SIZE) { // RACE head
            slots[t % SIZE] = i++; // RACE slot
            tail = t + 1; // RACE tail
        } else {
            sched_yield();
        }
    }
    return arg;
}
static void *consumer(void *arg) {
    long sum = 0;
    for (int i = 0; i < 50;) {
        unsigned h = head;
        if (h != tail) { // RACE tail
            sum += slots[h % SIZE]; // RACE slot
            head = h + 1; // RACE head
            i++;
        } else {
            sched_yield();
        }
    }
    printf("%ld\n", sum);
    return arg;
}
int main(void) {
    run(producer, consumer);
    return 0;
}
