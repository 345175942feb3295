// A mutex of an exchange and a plain store, as Berkeley DB's for x86: what is
// between is in order, and the word itself is no finding.
#include "two.h"
typedef struct {
    volatile unsigned char set;
} mutex;
static mutex lock;
static long guarded, tries;
static int exchange(volatile unsigned char *word) {
    unsigned char old = 1;
    __asm__ volatile("xchgb %0, %1" : "+q"(old), "+m"(*word) : : "memory");
    return old == 0;
}
static void take(mutex *mutex) {
    for (;;) {
        if (mutex->set != 0 || !exchange(&mutex->set)) {
            sched_yield();
            continue;
        }
        break;
    }
    tries++;
}
static void give(mutex *mutex) {
    __asm__ volatile("" : : : "memory");
    mutex->set = 0;
}
static void *count(void *arg) {
    for (int i = 0; i < 100; i++) {
        take(&lock);
        guarded++;
        give(&lock);
    }
    return arg;
}
int main(void) {
    run(count, count);
    printf("%ld %d\n", guarded, tries >= 200);
    return 0;
}
