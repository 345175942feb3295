// Clocks of processor time, of threads and of other processes; which clocks
// there are, and which can be slept by. No clock runs backwards between
// processes that wait for each other.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <sys/timex.h>
#include <sys/times.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void show(const char *what, int result) {
    printf("%s: %d %s\n", what, result, result < 0 ? strerrorname_np(errno) : "");
}

static void show_error(const char *what, int error) {
    printf("%s: %s\n", what, error ? strerrorname_np(error) : "done");
}

static long long elapsed(struct timespec from, struct timespec to) {
    return (to.tv_sec - from.tv_sec) * 1000000000LL + to.tv_nsec - from.tv_nsec;
}

static pthread_barrier_t barrier;
static void *idle(void *argument) {
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    return NULL;
}

static long long child_that_sleeps(void) {
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    pid_t child = fork();
    if (child == 0) {
        usleep(300000);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    clock_gettime(CLOCK_MONOTONIC, &to);
    return elapsed(from, to);
}

static void child_that_works(void) {
    struct tms before, after;
    times(&before);
    if (fork() == 0) {
        struct tms own;
        times(&own);
        printf("the child's: %d\n", own.tms_cutime + own.tms_cstime > 0);
        do
            times(&own);
        while (own.tms_utime + own.tms_stime < 3);
        _exit(0);
    }
    wait(NULL);
    times(&after);
    /* Those before it may have needed a tick: they are timed by the machine. */
    printf("children, later: %d\n",
           after.tms_cutime + after.tms_cstime > before.tms_cutime + before.tms_cstime);
}

int main(void) {
    setvbuf(stdout, NULL, _IONBF, 0);
    struct timespec time, nap = {0, 1000};
    for (int clock = -12; clock < 16; clock++) {
        int result = clock_gettime(clock, &time);
        // The processor time of process 0 is that of the caller.
        printf("clock %d: %d %d\n", clock, result, clock_getres(clock, NULL));
    }
    int sleepers[] = {CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_BOOTTIME, CLOCK_TAI,
                      CLOCK_THREAD_CPUTIME_ID, CLOCK_MONOTONIC_RAW, CLOCK_MONOTONIC_COARSE,
                      CLOCK_REALTIME_COARSE};
    for (int at = 0; at < 8; at++)
        show_error("nap", clock_nanosleep(sleepers[at], 0, &nap, NULL));

    pthread_t thread;
    clockid_t clock;
    pthread_barrier_init(&barrier, NULL, 2);
    pthread_create(&thread, NULL, idle, NULL);
    pthread_barrier_wait(&barrier);
    show_error("clock of a thread", pthread_getcpuclockid(thread, &clock));
    show("time of a thread", clock_gettime(clock, &time));
    printf("it has worked: %d\n", time.tv_nsec > 0);
    pthread_barrier_wait(&barrier);
    pthread_join(thread, NULL);
    show("time of one that is gone", clock_gettime(clock, &time));
    show_error("clock of the parent", clock_getcpuclockid(getppid(), &clock));
    show("time of the parent", clock_gettime(clock, &time));
    show("and how fine", clock_getres(clock, &time));
    show_error("clock of nobody", clock_getcpuclockid(999999, &clock));

    for (int round = 0; round < 3; round++)
        printf("the parent saw it sleep: %d\n", child_that_sleeps() >= 300000000);
    child_that_works();

    struct timex facts = {0};
    printf("adjtimex: %d\n", adjtimex(&facts) >= 0);
    facts.modes = ADJ_OFFSET_SINGLESHOT & ~1;
    show("adjtimex", adjtimex(&facts));
    return 0;
}
