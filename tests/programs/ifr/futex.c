// SILENT
// A lock and a hand-over made of futexes and plain atomic operations, and one
// whose kernel half goes through the C library's `syscall`.
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>
static atomic_int word, ready;
static long total, handed[40];
static void take(void) {
    int none = 0;
    while (!atomic_compare_exchange_strong_explicit(&word, &none, 1, memory_order_acquire, memory_order_relaxed)) {
        syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 1, NULL, NULL, 0);
        none = 0;
    }
}
static void give(void) {
    atomic_store_explicit(&word, 0, memory_order_release);
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}
static void *work(void *p) {
    for (int i = 0; i < 20000; i++) { take(); total++; give(); }
    if (p) {
        for (int i = 0; i < 40; i++) handed[i] = i;
        atomic_store_explicit(&ready, 1, memory_order_release);
        syscall(SYS_futex, &ready, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    } else {
        while (!atomic_load_explicit(&ready, memory_order_acquire)) syscall(SYS_futex, &ready, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
        for (int i = 0; i < 40; i++) total += handed[i];
    }
    return p;
}
int main(void) {
    pthread_t t;
    pthread_create(&t, 0, work, &t);
    work(0);
    pthread_join(t, 0);
    printf("%ld\n", total);
    return total != 40780;
}
