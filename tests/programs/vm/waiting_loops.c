// Threads that wait without sleeping, in every way that programs do it:
// waiting_loops [KIND [THREADS [ROUNDS]]], all kinds if none is named.
// identity: output as natively
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int threads = 3, rounds = 20;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static atomic_int arrived, phase;
static volatile int plain_phase;
static int plain_arrived;
static __thread long tries;
static long total;

/* Barriers: each of `threads` comes, the last one opens. */

static int comes_last(void) {
    if (atomic_fetch_add(&arrived, 1) != threads - 1)
        return 0;
    atomic_store(&arrived, 0);
    return 1;
}

static int comes_last_plainly(void) {
    pthread_mutex_lock(&mutex);
    int last = ++plain_arrived == threads;
    if (last)
        plain_arrived = 0;
    pthread_mutex_unlock(&mutex);
    return last;
}

static void plain(int mine) {
    if (comes_last_plainly())
        plain_phase = mine + 1;
    else
        while (plain_phase == mine)
            ;
}

static void plain_counting(int mine) {
    if (comes_last_plainly())
        plain_phase = mine + 1;
    else
        for (volatile long i = 0; plain_phase == mine; i++)
            ;
}

/* Spins for a while, then sleeps. */
static void plain_with_limit(int mine) {
    if (comes_last_plainly()) {
        pthread_mutex_lock(&mutex);
        plain_phase = mine + 1;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&mutex);
        return;
    }
    volatile unsigned long long i = 0;
    while (plain_phase == mine && i < 35000)
        i++;
    pthread_mutex_lock(&mutex);
    while (plain_phase == mine)
        pthread_cond_wait(&changed, &mutex);
    pthread_mutex_unlock(&mutex);
}

static void atomics(int mine) {
    if (comes_last())
        atomic_store(&phase, mine + 1);
    else
        while (atomic_load_explicit(&phase, memory_order_acquire) == mine)
            ;
}

static void atomics_counting(int mine) {
    if (comes_last())
        atomic_store(&phase, mine + 1);
    else
        for (long i = 0; atomic_load(&phase) == mine && i < 1000000000; i++)
            tries++;
}

static void pausing(int mine) {
    if (comes_last())
        atomic_store(&phase, mine + 1);
    else
        while (atomic_load(&phase) == mine)
            __builtin_ia32_pause();
}

__attribute__((noinline)) static int now(atomic_int *word) {
    return atomic_load(word);
}

__attribute__((noinline)) static int is_open(int mine) {
    return now(&phase) != mine;
}

static void calling(int mine) {
    if (comes_last())
        atomic_store(&phase, mine + 1);
    else
        while (!is_open(mine))
            ;
}

static void backing_off(int mine) {
    if (comes_last())
        atomic_store(&phase, mine + 1);
    else
        while (atomic_load(&phase) == mine)
            for (volatile int i = 0; i < 20; i++)
                ;
}

static void yielding(int mine) {
    if (comes_last())
        atomic_store(&phase, mine + 1);
    else
        while (atomic_load(&phase) == mine)
            sched_yield();
}

static void napping(int mine) {
    struct timespec nap = {0, 1000};
    if (comes_last())
        atomic_store(&phase, mine + 1);
    else
        while (atomic_load(&phase) == mine)
            nanosleep(&nap, NULL);
}

static void then_futex(int mine) {
    if (comes_last()) {
        atomic_store(&phase, mine + 1);
        syscall(SYS_futex, &phase, FUTEX_WAKE_PRIVATE, threads, NULL, NULL, 0);
        return;
    }
    for (int i = 0; i < 500; i++)
        if (atomic_load(&phase) != mine)
            return;
    while (atomic_load(&phase) == mine)
        syscall(SYS_futex, &phase, FUTEX_WAIT_PRIVATE, mine, NULL, NULL, 0);
}

/* Locks: `total` is theirs. */

static atomic_uint next_ticket, serving;

static void ticket_lock(int unused) {
    unsigned mine = atomic_fetch_add(&next_ticket, 1);
    while (atomic_load_explicit(&serving, memory_order_acquire) != mine)
        ;
    total++;
    atomic_store_explicit(&serving, mine + 1, memory_order_release);
}

struct waiter {
    struct waiter *_Atomic next;
    atomic_int locked;
};
static struct waiter *_Atomic tail;

static void mcs_lock(int unused) {
    struct waiter me = {NULL, 1};
    struct waiter *before = atomic_exchange(&tail, &me);
    if (before) {
        atomic_store(&before->next, &me);
        while (atomic_load_explicit(&me.locked, memory_order_acquire))
            ;
    }
    total++;
    struct waiter *self = &me;
    if (atomic_compare_exchange_strong(&tail, &self, NULL))
        return;
    while (!atomic_load(&me.next))
        ;
    atomic_store(&atomic_load(&me.next)->locked, 0);
}

static atomic_int taken;

static void exchange_lock(int unused) {
    while (atomic_exchange(&taken, 1))
        ;
    total++;
    atomic_store(&taken, 0);
}

static void compare_lock(int unused) {
    int free = 0;
    while (!atomic_compare_exchange_weak(&taken, &free, 1))
        free = 0;
    total++;
    atomic_store(&taken, 0);
}

static void trying_lock(int unused) {
    while (pthread_mutex_trylock(&mutex))
        ;
    total++;
    pthread_mutex_unlock(&mutex);
}

/* One writes two words that belong together, the others read them. */
static atomic_uint sequence;
static atomic_long pair[2];
static __thread int is_writer;

static void sequence_lock(int round) {
    if (is_writer) {
        atomic_fetch_add(&sequence, 1);
        for (int i = 0; i < 2; i++)
            atomic_store(&pair[i], round);
        atomic_fetch_add(&sequence, 1);
        return;
    }
    unsigned before;
    long first, second;
    do {
        while ((before = atomic_load(&sequence)) & 1)
            ;
        first = atomic_load(&pair[0]);
        second = atomic_load(&pair[1]);
    } while (atomic_load(&sequence) != before);
    if (first != second)
        abort();
}

static const struct kind {
    const char *name;
    void (*wait)(int);
} kinds[] = {
    {"plain", plain},
    {"plain-counting", plain_counting},
    {"plain-with-limit", plain_with_limit},
    {"atomics", atomics},
    {"atomics-counting", atomics_counting},
    {"pausing", pausing},
    {"calling", calling},
    {"backing-off", backing_off},
    {"yielding", yielding},
    {"napping", napping},
    {"then-futex", then_futex},
    {"ticket-lock", ticket_lock},
    {"mcs-lock", mcs_lock},
    {"exchange-lock", exchange_lock},
    {"compare-lock", compare_lock},
    {"trying-lock", trying_lock},
    {"sequence-lock", sequence_lock},
};
static const struct kind *kind;

/* Work of another length for each thread, so that they wait for each other. */
static void work(long number, int round) {
    for (volatile int i = 0; i < 200 + 100 * ((number + round) % threads); i++)
        ;
}

static void *thread(void *number) {
    is_writer = number == 0;
    for (int round = 0; round < rounds; round++) {
        work((long)number, round);
        kind->wait(round);
    }
    return NULL;
}

static void run(void) {
    plain_phase = 0;
    atomic_store(&phase, 0);
    total = 0;
    pthread_t started[threads];
    for (long i = 0; i < threads; i++)
        pthread_create(&started[i], NULL, thread, (void *)i);
    for (int i = 0; i < threads; i++)
        pthread_join(started[i], NULL);
    printf("%s: phase %d, plain phase %d, total %ld\n", kind->name, atomic_load(&phase),
           plain_phase, total);
}

int main(int count, char **arguments) {
    const int all = sizeof kinds / sizeof *kinds;
    if (count > 2)
        threads = atoi(arguments[2]);
    if (count > 3)
        rounds = atoi(arguments[3]);
    for (int i = 0; i < all; i++)
        if (count < 2 || !strcmp(arguments[1], kinds[i].name)) {
            kind = &kinds[i];
            run();
        }
    return 0;
}
