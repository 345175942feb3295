// SILENT
// A lock in inline assembly: what it orders is known to nobody but the reader.
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
static int word;
static long total;
static int take(void) { int held = 1; __asm__ volatile("xchgl %0, %1" : "+r"(held), "+m"(word) : : "memory"); return !held; }
static void give(void) { __asm__ volatile("movl $0, %0" : "=m"(word) : : "memory"); }
static void *work(void *p) {
    for (int i = 0; i < 100000; i++) { while (!take()) sched_yield(); total++; give(); }
    return p;
}
int main(void) {
    pthread_t t;
    pthread_create(&t, 0, work, 0);
    work(0);
    pthread_join(t, 0);
    printf("%ld\n", total);
    return total != 200000;
}
