// identity: output as natively
// Repeated string instructions that go on for long: copies, fills, searches
// and comparisons in either direction, one that faults half way and is
// repaired, beside a thread that keeps the scheduler busy.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#define SIZE (300L << 10)

static unsigned char *from, *to;
static unsigned char *guarded;
static volatile int stop;
static long left_at_fault = -1, done_at_fault;

static void *busy(void *argument) {
    unsigned long sum = 0;
    while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) sum = sum * 31 + 7;
    return argument ? (void *)sum : NULL;
}

static void copy(void *target, const void *source, long count, int backwards) {
    if (backwards)
        __asm__ volatile("std; rep movsb; cld" : "+D"(target), "+S"(source), "+c"(count) : : "memory", "cc");
    else
        __asm__ volatile("cld; rep movsb" : "+D"(target), "+S"(source), "+c"(count) : : "memory", "cc");
}

static long fill(void *target, unsigned char value, long count) {
    void *start = target;
    __asm__ volatile("cld; rep stosb" : "+D"(target), "+c"(count) : "a"(value) : "memory", "cc");
    return (char *)target - (char *)start;
}

// Iterations made, and the zero flag at the end.
static long search(const void *text, unsigned char what, long limit, int *found) {
    long count = limit;
    unsigned char zero;
    __asm__ volatile("cld; repne scasb; setz %0" : "=q"(zero), "+D"(text), "+c"(count) : "a"(what) : "memory", "cc");
    *found = zero;
    return limit - count;
}

static long compare(const void *one, const void *two, long words, int *equal) {
    long count = words;
    unsigned char zero;
    __asm__ volatile("cld; repe cmpsq; setz %0" : "=q"(zero), "+D"(one), "+S"(two), "+c"(count) : : "memory", "cc");
    *equal = zero;
    return words - count;
}

static void repair(int signal, siginfo_t *info, void *context) {
    (void)signal;
    ucontext_t *machine = context;
    left_at_fault = machine->uc_mcontext.gregs[REG_RCX];
    done_at_fault = machine->uc_mcontext.gregs[REG_RDI] - (long)guarded;
    mprotect((void *)((unsigned long)info->si_addr & ~4095UL), SIZE, PROT_READ | PROT_WRITE);
}

int main(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, busy, NULL);
    from = malloc(SIZE + 1);
    to = malloc(SIZE + 1);
    for (long i = 0; i < SIZE; i++) from[i] = i % 251 + 1;
    from[SIZE] = 0;

    copy(to, from, SIZE, 0);
    printf("forwards: %d\n", memcmp(from, to, SIZE));
    memset(to, 0, SIZE);
    copy(to + SIZE - 1, from + SIZE - 1, SIZE, 1);
    printf("backwards: %d\n", memcmp(from, to, SIZE));

    int flag;
    long count = search(from, 0, -1L, &flag);
    printf("search without limit: %ld %d\n", count, flag);
    count = search(from, 0, SIZE, &flag);
    printf("search in vain: %ld %d\n", count, flag);
    count = search(from, 1, 65536, &flag);
    printf("found at once: %ld %d\n", count, flag);
    // Decided by the last and by the first element of a part.
    from[65535] = 255;
    count = search(from, 255, SIZE, &flag);
    printf("found at the end of a part: %ld %d\n", count, flag);
    from[65535] = 1;
    from[65536] = 255;
    count = search(from, 255, SIZE, &flag);
    printf("found at the start of the next: %ld %d\n", count, flag);
    from[65536] = to[65536];
    from[65535] = to[65535];

    long words = SIZE / 8;
    count = compare(from, to, words, &flag);
    printf("equal: %ld %d\n", count, flag);
    unsigned char *big_one = calloc(1, 8 * 200000), *big_two = calloc(1, 8 * 200000);
    big_two[8 * 150000 + 3] = 1;
    count = compare(big_one, big_two, 200000, &flag);
    printf("different: %ld %d\n", count, flag);

    guarded = mmap(NULL, 2 * SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(guarded + 200 * 1024, 2 * SIZE - 200 * 1024, PROT_NONE);
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = repair;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, NULL);
    long filled = fill(guarded, 7, SIZE);
    printf("repaired: %ld, %ld left after %ld\n", filled, left_at_fault, done_at_fault);
    int bad = 0;
    for (long i = 0; i < SIZE; i++) bad += guarded[i] != 7;
    printf("wrong bytes: %d\n", bad);

    __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
    pthread_join(thread, NULL);
    return 0;
}
