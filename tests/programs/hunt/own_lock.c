// A lock that tests and sets in two steps keeps nobody out.
// HUNT fails: exit 1
#include "work.h"
#include <pthread.h>
#include <sched.h>

static volatile int locked;
static int inside;
static int most;

static void *enter(void *unused) {
    (void)unused;
    work(200);
    while (locked)  // DECIDES
        sched_yield();
    locked = 1;  // DECIDES
    int now = __atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST);
    if (now > 1)
        most = now;
    work(5);
    __atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST);
    locked = 0;  // DECIDES
    return 0;
}

int main(void) {
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], 0, enter, 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], 0);
    return most > 1;
}
