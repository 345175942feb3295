/* Programs whose work grows in one dimension: kernels DIMENSION SIZE.
 *
 * Natively each takes time proportional to SIZE. `bench/growth/run` measures
 * what deadheat takes. */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int size;
static long shared;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

/* `count` threads run `body`, which is given its number. */
static void with_threads(int count, void *(*body)(void *)) {
    pthread_t *threads = malloc(count * sizeof *threads);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    for (long i = 0; i < count; i++)
        if (pthread_create(&threads[i], &small, body, (void *)i)) {
            perror("pthread_create");
            exit(1);
        }
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    free(threads);
}

static pthread_mutex_t *new_locks(int count) {
    pthread_mutex_t *locks = malloc(count * sizeof *locks);
    for (int i = 0; i < count; i++)
        pthread_mutex_init(&locks[i], NULL);
    return locks;
}

/* Each of three threads holds SIZE locks of its own, and gives them back
 * oldest first. */
static void *holds(void *unused) {
    pthread_mutex_t *locks = new_locks(size);
    for (int i = 0; i < size; i++)
        pthread_mutex_lock(&locks[i]);
    for (int i = 0; i < size; i++)
        pthread_mutex_unlock(&locks[i]);
    for (int i = 0; i < size; i++)
        pthread_mutex_destroy(&locks[i]);
    free(locks);
    return unused;
}

/* As `holds`, but ends with all locks held: a problem for each. */
static void *keeps(void *unused) {
    pthread_mutex_t *locks = new_locks(size);
    for (int i = 0; i < size; i++)
        pthread_mutex_lock(&locks[i]);
    return unused;
}

/* SIZE locks that all threads use, in the same order, two held at a time. */
static pthread_mutex_t *all;
static void *passes(void *unused) {
    pthread_mutex_lock(&all[0]);
    for (int i = 1; i < size; i++) {
        pthread_mutex_lock(&all[i]);
        pthread_mutex_unlock(&all[i - 1]);
    }
    pthread_mutex_unlock(&all[size - 1]);
    return unused;
}

/* SIZE locks that all threads hold at once, taken in one order. */
static void *holds_shared(void *unused) {
    for (int i = 0; i < size; i++)
        pthread_mutex_lock(&all[i]);
    for (int i = size; i-- > 0;)
        pthread_mutex_unlock(&all[i]);
    return unused;
}

/* The same in opposite orders, behind one lock: no inversion. */
static void *holds_either(void *number) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < size; i++)
        pthread_mutex_lock(&all[number ? i : size - 1 - i]);
    for (int i = 0; i < size; i++)
        pthread_mutex_unlock(&all[i]);
    pthread_mutex_unlock(&lock);
    return number;
}

/* Unordered accesses with SIZE locks of one's own held. */
static void *races_holding(void *unused) {
    pthread_mutex_t *locks = new_locks(size);
    for (int i = 0; i < size; i++)
        pthread_mutex_lock(&locks[i]);
    for (int i = 0; i < size; i++)
        shared++;
    for (int i = size; i-- > 0;)
        pthread_mutex_unlock(&locks[i]);
    return unused;
}

/* Everybody adds under one lock. */
static void *adds(void *unused) {
    for (int i = 0; i < 20; i++) {
        pthread_mutex_lock(&lock);
        shared++;
        pthread_mutex_unlock(&lock);
    }
    return unused;
}

/* As long a run as SIZE says. */
static void *runs(void *number) {
    long mine[64] = {0};
    for (int i = 0; i < size; i++) {
        for (int j = 0; j < 64; j++)
            mine[j] += i ^ j;
        pthread_mutex_lock(&lock);
        shared += mine[i & 63];
        pthread_mutex_unlock(&lock);
    }
    return number;
}

/* SIZE live blocks that two threads make, use and free. */
static void *allocates(void *unused) {
    char **blocks = malloc(size * sizeof *blocks);
    for (int i = 0; i < size; i++)
        memset(blocks[i] = malloc(16 + i % 64), i, 16);
    for (int i = 0; i < size; i++)
        free(blocks[(i * 7919L) % size]), blocks[(i * 7919L) % size] = NULL;
    for (int i = 0; i < size; i++)
        free(blocks[i]);
    free(blocks);
    return unused;
}

/* SIZE racing words, by one pair of instructions. */
static long *words;
static void *scribbles(void *number) {
    for (int i = 0; i < size; i++)
        words[i] = (long)number;
    return number;
}

/* SIZE racing accesses to one word. */
static void *increments(void *number) {
    for (int i = 0; i < size; i++)
        shared++;
    return number;
}

/* SIZE threads wait for a condition and are woken one after the other. */
static int waiting, tickets;
static void *waits(void *unused) {
    pthread_mutex_lock(&lock);
    waiting++;
    while (!tickets)
        pthread_cond_wait(&changed, &lock);
    tickets--;
    pthread_mutex_unlock(&lock);
    return unused;
}

static void *wakes(void *unused) {
    for (int done = 0; done < size;) {
        pthread_mutex_lock(&lock);
        if (waiting == size) {
            tickets++;
            done++;
            pthread_cond_signal(&changed);
        }
        pthread_mutex_unlock(&lock);
        if (!done)
            usleep(100);
    }
    return unused;
}

static void *wakes_or_waits(void *number) {
    return number ? waits(number) : wakes(number);
}

/* SIZE open pipes. */
static int (*pipes)[2];
static void *sends(void *number) {
    char byte = 0;
    for (int i = 0; i < size; i++)
        if (number ? read(pipes[i][0], &byte, 1) : write(pipes[i][1], &byte, 1))
            shared += byte;
    return number;
}

/* SIZE threads that nap. */
static void *naps(void *number) {
    for (int i = 0; i < 10; i++)
        usleep(1000);
    return number;
}

/* One thread looks in small steps of time whether the other is done, which
 * sleeps SIZE of them. */
static atomic_int done;
static void *looks(void *number) {
    if (number) {
        usleep(size * 100L);
        atomic_store(&done, 1);
    } else
        while (!atomic_load(&done))
            usleep(100);
    return number;
}

/* SIZE rounds of a barrier where two threads spin. */
static atomic_int arrived, round_number;
static void *spins(void *number) {
    for (int i = 0; i < size; i++) {
        int mine = atomic_load(&round_number);
        if (atomic_fetch_add(&arrived, 1) == 3) {
            atomic_store(&arrived, 0);
            atomic_store(&round_number, mine + 1);
        } else
            while (atomic_load(&round_number) == mine)
                ;
    }
    return number;
}

/* The same with a plain flag. */
static volatile int plain_round;
static int plain_arrived;
static void *spins_plainly(void *number) {
    for (int i = 0; i < size; i++) {
        int mine = plain_round;
        pthread_mutex_lock(&lock);
        int last = ++plain_arrived == 4;
        if (last) {
            plain_arrived = 0;
            plain_round = mine + 1;
        }
        pthread_mutex_unlock(&lock);
        while (!last && plain_round == mine)
            ;
    }
    return number;
}

static void one_after_the_other(void) {
    for (int i = 0; i < size; i++)
        with_threads(2, adds);
}

int main(int count, char **arguments) {
    if (count != 3)
        return 2;
    const char *what = arguments[1];
    size = atoi(arguments[2]);
    all = new_locks(size);
    words = calloc(size, sizeof *words);
    struct { const char *name; int threads; void *(*body)(void *); } kernels[] = {
        {"held", 3, holds},           {"kept", 3, keeps},
        {"locks", 3, passes},         {"held-by-all", 3, holds_shared},
        {"held-behind-one", 2, holds_either},
        {"racing-held", 2, races_holding},
        {"threads", size, adds},      {"length", 4, runs},
        {"blocks", 2, allocates},     {"words", 2, scribbles},
        {"instances", 2, increments}, {"waiters", size + 1, wakes_or_waits},
        {"pipes", 2, sends},          {"naps", size, naps},
        {"polls", 2, looks},          {"spins", 4, spins},
        {"plain-spins", 4, spins_plainly},
    };
    if (!strcmp(what, "starts")) {
        one_after_the_other();
        return 0;
    }
    if (!strcmp(what, "pipes")) {
        pipes = malloc(size * sizeof *pipes);
        for (int i = 0; i < size; i++)
            if (pipe(pipes[i])) {
                perror("pipe");
                return 1;
            }
    }
    for (unsigned i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (!strcmp(what, kernels[i].name)) {
            with_threads(kernels[i].threads, kernels[i].body);
            return 0;
        }
    return 2;
}
