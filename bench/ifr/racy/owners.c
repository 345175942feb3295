// Objects under the wrong lock, or freed while somebody still reads them.
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#define APART __attribute__((noinline))
enum { ROUNDS = 600000 };
static pthread_mutex_t left = PTHREAD_MUTEX_INITIALIZER, right = PTHREAD_MUTEX_INITIALIZER;
struct box { long value; long pad[6]; };
long balance, limit = 10;
struct box *current;
static APART void deposit(void) { pthread_mutex_lock(&left); for (int i = 0; i < 20; i++) balance += i; pthread_mutex_unlock(&left); }
static APART void withdraw(void) { pthread_mutex_lock(&right); for (int i = 0; i < 20; i++) balance -= i; pthread_mutex_unlock(&right); }
static APART void raise_limit(void) { if (limit < 1 << 20) limit++; }
static APART long check_limit(void) { return limit; }
static APART void replace(void) { struct box *b = malloc(sizeof *b); b->value = 1; struct box *old = current; current = b; free(old); raise_limit(); }
static APART long use(void) { struct box *b = current; return b ? b->value : 0; }
static void *first(void *p) { for (int i = 0; i < ROUNDS; i++) { deposit(); raise_limit(); if (i % 16 == 0) replace(); } return p; }
static void *second(void *p) { long s = 0; for (int i = 0; i < ROUNDS; i++) { withdraw(); s += check_limit() + use(); } return s ? p : 0; }
int main(void) {
    pthread_t t[2];
    pthread_create(&t[0], 0, first, 0);
    pthread_create(&t[1], 0, second, 0);
    for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
    printf("%d\n", limit > 10);
}
