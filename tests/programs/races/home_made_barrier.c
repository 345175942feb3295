// MISSED at stripped: a check of a flag looks like an acquire load there.
// A barrier that spins on a flag and looks at it again under its lock, as
// PARSEC's does: all that it orders is in order, by the lock; the flag alone is
// a finding, one, and labelled.
// LABELS home-made-lock
#include "two.h"
#include <stdbool.h>
static struct {
    pthread_mutex_t lock;
    volatile bool arriving;
    unsigned count;
} barrier = {PTHREAD_MUTEX_INITIALIZER, true, 0};
static long parts[2], sums[2];
static void pass(void) {
    pthread_mutex_lock(&barrier.lock);
    while (!barrier.arriving) { // RACE flag
        pthread_mutex_unlock(&barrier.lock);
        while (!barrier.arriving) // RACE flag
            ;
        pthread_mutex_lock(&barrier.lock);
    }
    if (++barrier.count == 2) {
        barrier.arriving = false; // RACE flag
    } else {
        while (barrier.arriving) { // RACE flag
            pthread_mutex_unlock(&barrier.lock);
            while (barrier.arriving) // RACE flag
                ;
            pthread_mutex_lock(&barrier.lock);
        }
    }
    if (--barrier.count == 0)
        barrier.arriving = true; // RACE flag
    pthread_mutex_unlock(&barrier.lock);
}
static void *work(void *number) {
    long me = (long)number;
    for (int round = 0; round < 8; round++) {
        parts[me] = round + me;
        pass();
        sums[me] = parts[0] + parts[1];
        pass();
    }
    return number;
}
int main(void) {
    run_with(work, (void *)0, work, (void *)1);
    printf("%ld %ld\n", sums[0], sums[1]);
    return 0;
}
