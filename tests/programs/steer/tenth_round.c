// The same two lines meet harmlessly nine times, each time on memory of its
// own; only in the tenth round both threads use the shared cell. A thread held
// at its first arrival is of no use: later arrivals have to be tried too.
// CANDIDATE: write read
// UNSTEERED: never
// STEERED: happens
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

enum { ROUNDS = 10 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int passes;
static int left[ROUNDS], right[ROUNDS], shared;

static void pass(void) {
    pthread_mutex_lock(&lock);
    passes++;
    pthread_mutex_unlock(&lock);
}

__attribute__((noinline)) static void put(int *cell, int value) {
    *cell = value; // RACE write
}

__attribute__((noinline)) static int get(int *cell) {
    return *cell; // RACE read
}

static void *writer(void *nothing) {
    for (int i = 0; i < ROUNDS; i++) {
        pass();
        put(i < ROUNDS - 1 ? &left[i] : &shared, i);
        pass();
        usleep(20000);
    }
    return nothing;
}

static void *reader(void *nothing) {
    int sum = 0;
    usleep(10000);
    for (int i = 0; i < ROUNDS; i++) {
        pass();
        sum += get(i < ROUNDS - 1 ? &right[i] : &shared);
        pass();
        usleep(20000);
    }
    printf("%d\n", sum);
    return nothing;
}

int main(void) {
    pthread_t one, other;
    pthread_create(&one, NULL, writer, NULL);
    pthread_create(&other, NULL, reader, NULL);
    pthread_join(one, NULL);
    pthread_join(other, NULL);
    return 0;
}
