// alarm, interval timers and POSIX timers.
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int ticks, alarms;
static void tick(int sig) { (void)sig; ticks++; }
static void alarmed(int sig) { (void)sig; alarms++; }

int main(void) {
    signal(SIGALRM, alarmed);
    alarm(100);
    printf("left: %u\n", alarm(1) >= 99);
    pause();
    printf("alarms: %d\n", alarms);

    alarm(1);
    struct timespec long_time = {10, 0}, rest = {0, 0};
    int result = nanosleep(&long_time, &rest);
    printf("sleep: %d %d rest %d\n", result, errno == EINTR, rest.tv_sec >= 8);

    signal(SIGALRM, tick);
    struct itimerval every = {{0, 2000}, {0, 2000}}, none = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &every, NULL);
    while (ticks < 5) pause();
    setitimer(ITIMER_REAL, &none, NULL);
    printf("ticks: %d\n", ticks >= 5);

    ticks = 0;
    signal(SIGVTALRM, tick);
    setitimer(ITIMER_VIRTUAL, &every, NULL);
    volatile long work = 0;
    while (ticks < 3) work++;
    setitimer(ITIMER_VIRTUAL, &none, NULL);
    printf("virtual ticks: %d\n", ticks >= 3);

    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN);
    sigprocmask(SIG_BLOCK, &set, NULL);
    struct sigevent event;
    memset(&event, 0, sizeof event);
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = SIGRTMIN;
    event.sigev_value.sival_int = 42;
    timer_t timer;
    timer_create(CLOCK_MONOTONIC, &event, &timer);
    struct itimerspec spec = {{0, 1000000}, {0, 1000000}};
    timer_settime(timer, 0, &spec, NULL);
    for (int i = 0; i < 3; i++) {
        siginfo_t info;
        int sig = sigwaitinfo(&set, &info);
        printf("timer: %d value %d code %d\n", sig == SIGRTMIN, info.si_value.sival_int, info.si_code == SI_TIMER);
    }
    struct timespec some = {0, 20000000};
    nanosleep(&some, NULL);
    siginfo_t info;
    sigwaitinfo(&set, &info);
    printf("overrun: %d\n", timer_getoverrun(timer) > 0 && info.si_overrun > 0);
    timer_delete(timer);
    return 0;
}
