// Reading the time-stamp counter is a fault if the thread has asked for that.
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <x86intrin.h>

static __thread sigjmp_buf back;

static void fault(int signal) { siglongjmp(back, signal); }

static const char *reads(void) {
    unsigned processor;
    if (sigsetjmp(back, 1) != 0) return "faults";
    __rdtsc();
    if (sigsetjmp(back, 1) != 0) return "faults half way";
    __rdtscp(&processor);
    return "reads";
}

static int setting(void) {
    int setting = 0;
    prctl(PR_GET_TSC, &setting);
    return setting;
}

static void *thread(void *unused) {
    printf("thread: %d %s\n", setting(), reads());
    prctl(PR_SET_TSC, PR_TSC_ENABLE);
    printf("thread, open: %d %s\n", setting(), reads());
    return unused;
}

int main(void) {
    signal(SIGSEGV, fault);
    printf("at first: %d %s\n", setting(), reads());
    printf("closed: %d", prctl(PR_SET_TSC, PR_TSC_SIGSEGV));
    printf(" %d %s\n", setting(), reads());
    pthread_t id;
    pthread_create(&id, NULL, thread, NULL);
    pthread_join(id, NULL);
    printf("main: %d %s\n", setting(), reads());
    fflush(stdout);
    if (fork() == 0) {
        printf("child: %d %s\n", setting(), reads());
        return 0;
    }
    wait(NULL);
    printf("wrong: %d\n", prctl(PR_SET_TSC, 9));
    return 0;
}
