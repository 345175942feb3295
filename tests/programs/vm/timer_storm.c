// Timers that expire all the time while nobody takes their signals, timers that
// are ignored or notify nobody, and signals up to RLIMIT_SIGPENDING.
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t handled, overrun;

static void handler(int signal, siginfo_t *info, void *context) {
    handled++;
    overrun = info->si_overrun;
}

static timer_t make(int notify, int signal) {
    struct sigevent event = {.sigev_notify = notify, .sigev_signo = signal};
    timer_t timer;
    if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0)
        exit(1);
    return timer;
}

static void start(timer_t timer, long first, long interval) {
    struct itimerspec times = {
        .it_value = {first / 1000000000, first % 1000000000},
        .it_interval = {interval / 1000000000, interval % 1000000000},
    };
    timer_settime(timer, 0, &times, NULL);
}

static void rest(long milliseconds) {
    struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    while (nanosleep(&time, &time) != 0)
        ;
}

static void between(const char *what, long value, long low, long high) {
    if (low <= value && value <= high)
        printf("%s: right\n", what);
    else
        printf("%s: %ld\n", what, value);
}

int main(void) {
    setvbuf(stdout, NULL, _IONBF, 0);
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    sigaction(SIGRTMIN, &action, NULL);
    sigset_t set, old;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN);
    sigprocmask(SIG_BLOCK, &set, &old);

    // 2 ns, for half a second: nobody counts that one by one.
    timer_t timer = make(SIGEV_SIGNAL, SIGRTMIN);
    start(timer, 1000, 2);
    rest(500);
    siginfo_t info;
    struct timespec none = {0};
    printf("taken: %d\n", sigtimedwait(&set, &info, &none) == SIGRTMIN);
    between("overrun", info.si_overrun, 200000000, 2147483647);
    printf("asked: %d\n", timer_getoverrun(timer) == info.si_overrun);
    start(timer, 0, 0);
    while (sigtimedwait(&set, &info, &none) == SIGRTMIN)
        ;

    // 20 ms, for 210 ms.
    start(timer, 20000000, 20000000);
    rest(210);
    struct itimerspec left;
    timer_gettime(timer, &left);
    between("left", left.it_value.tv_nsec, 1, 20000000);
    printf("taken: %d\n", sigtimedwait(&set, &info, &none) == SIGRTMIN);
    between("overrun", info.si_overrun, 9, 60);
    // It goes on where it was.
    struct timespec long_time = {5, 0};
    printf("taken: %d\n", sigtimedwait(&set, &info, &long_time) == SIGRTMIN);
    between("overrun", info.si_overrun, 0, 50);
    sigprocmask(SIG_SETMASK, &old, NULL);
    while (handled < 3)
        pause();
    printf("handled\n");
    timer_delete(timer);

    // One whose signal is ignored, then no longer.
    signal(SIGUSR1, SIG_IGN);
    timer = make(SIGEV_SIGNAL, SIGUSR1);
    start(timer, 1000000, 1000000);
    rest(100);
    handled = 0;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGUSR1, &action, NULL);
    while (handled < 2)
        pause();
    printf("handled again\n");
    // Pending, then ignored.
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, &old);
    rest(10);
    signal(SIGUSR1, SIG_IGN);
    sigaction(SIGUSR1, &action, NULL);
    printf("taken: %d\n", sigtimedwait(&set, NULL, &long_time) == SIGUSR1);
    timer_delete(timer);
    sigprocmask(SIG_SETMASK, &old, NULL);

    // One whose signal lets processes go on.
    sigaddset(&set, SIGCONT);
    sigprocmask(SIG_BLOCK, &set, &old);
    timer = make(SIGEV_SIGNAL, SIGCONT);
    start(timer, 20000000, 20000000);
    rest(210);
    printf("taken: %d\n", sigtimedwait(&set, &info, &none) == SIGCONT);
    between("overrun", info.si_overrun, 9, 60);
    timer_delete(timer);
    sigprocmask(SIG_SETMASK, &old, NULL);

    // One that notifies nobody.
    timer = make(SIGEV_NONE, 0);
    start(timer, 1000000, 3);
    rest(100);
    timer_gettime(timer, &left);
    between("left", left.it_value.tv_nsec, 1, 3);
    start(timer, 1000000, 0);
    rest(100);
    timer_gettime(timer, &left);
    printf("over: %ld\n", left.it_value.tv_nsec);
    timer_delete(timer);

    // Signals that queue.
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN + 1);
    sigaddset(&set, SIGRTMIN + 2);
    sigaddset(&set, SIGUSR2);
    sigprocmask(SIG_BLOCK, &set, NULL);
    // Other processes of this user count as well.
    struct rlimit limit = {2000, 2000};
    setrlimit(RLIMIT_SIGPENDING, &limit);
    int queued = 0;
    for (int i = 0; i < 2500; i++)
        queued += sigqueue(getpid(), SIGRTMIN + 1 + i % 2, (union sigval){i}) == 0;
    printf("queued %s\n", queued <= 2000 && queued >= 1000 ? "up to the limit" : "otherwise");
    printf("more: %s\n", sigqueue(getpid(), SIGRTMIN + 1, (union sigval){0}) ? strerrorname_np(errno) : "queued");
    printf("another: %d\n", kill(getpid(), SIGUSR2));
    int taken, last = -1, order = 1;
    for (taken = 0; sigtimedwait(&set, &info, &none) > 0; taken++)
        if (info.si_signo != SIGUSR2) {
            int place = info.si_value.sival_int % 2 * 10000 + info.si_value.sival_int;
            order &= place > last;
            last = place;
        }
    printf("taken %d, in order: %d\n", taken - queued, order);
    return 0;
}
