// sched_*: what is refused, kept, inherited and shown.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

struct attributes {
    unsigned size, policy;
    unsigned long long flags;
    int nice;
    unsigned priority;
    unsigned long long runtime, deadline, period;
};

static void show(const char *what, int result) {
    printf("%s: %d %s\n", what, result, result < 0 ? strerrorname_np(errno) : "");
}

static int set(int pid, int policy, int priority) {
    struct sched_param parameter = {priority};
    return sched_setscheduler(pid, policy, &parameter);
}

static void now(const char *who) {
    struct sched_param parameter = {-1};
    sched_getparam(0, &parameter);
    cpu_set_t processors;
    CPU_ZERO(&processors);
    sched_getaffinity(0, sizeof processors, &processors);
    printf("%s: policy %d, priority %d, first processor only %d\n", who, sched_getscheduler(0),
           parameter.sched_priority, CPU_COUNT(&processors) == 1 && CPU_ISSET(0, &processors));
}

static void *thread(void *argument) {
    now(argument);
    return NULL;
}

static void heirs(const char *in_child, char *in_thread) {
    pthread_t id;
    pthread_create(&id, NULL, thread, in_thread);
    pthread_join(id, NULL);
    if (fork() == 0) {
        now(in_child);
        _exit(0);
    }
    wait(NULL);
}

int main(void) {
    setvbuf(stdout, NULL, _IONBF, 0);
    struct sched_param parameter = {0};
    struct timespec slice;
    now("start");
    show("no such policy", set(0, 77, 0));
    show("priority of nothing", set(0, SCHED_OTHER, 1));
    show("no priority", set(0, SCHED_FIFO, 0));
    show("too high", set(0, SCHED_RR, 100));
    show("nobody", set(-1, SCHED_OTHER, 0));
    show("no parameter", sched_setscheduler(0, SCHED_OTHER, NULL));
    show("not living", sched_getscheduler(999999999));
    show("not living", sched_getparam(999999999, &parameter));
    show("its parent", sched_getscheduler(getppid()) < 0 ? -1 : 0);
    // Whoever starts this: from here on without rights.
    if (geteuid() == 0) {
        struct rlimit none = {0, 0};
        setrlimit(RLIMIT_RTPRIO, &none);
        if (setuid(65534) != 0)
            return 1;
    }
    show("without rights", set(0, SCHED_FIFO, 1));
    show("the first process", set(1, SCHED_OTHER, 0));
    show("batch", set(0, SCHED_BATCH, 0));
    now("batch");
    heirs("its child", "its thread");
    show("reset", set(0, SCHED_BATCH | SCHED_RESET_ON_FORK, 0));
    now("reset");
    heirs("its child", "its thread");
    show("keep", set(0, SCHED_BATCH, 0));
    show("the same parameter", sched_setparam(0, &parameter));
    parameter.sched_priority = 3;
    show("another", sched_setparam(0, &parameter));
    show("slice", sched_rr_get_interval(0, &slice));
    show("slice of nobody", sched_rr_get_interval(-1, &slice));

    struct attributes attributes = {.size = sizeof attributes, .policy = SCHED_IDLE};
    show("attributes", syscall(SYS_sched_setattr, 0, &attributes, 0));
    memset(&attributes, 0xff, sizeof attributes);
    show("read", syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0));
    printf("policy %u, priority %u\n", attributes.policy, attributes.priority);
    show("too short", syscall(SYS_sched_getattr, 0, &attributes, 40, 0));
    show("flags", syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 1));
    attributes.size = 20;
    show("too short", syscall(SYS_sched_setattr, 0, &attributes, 0));
    printf("wanted %d\n", attributes.size >= 48);

    cpu_set_t processors;
    CPU_ZERO(&processors);
    show("no processor", sched_setaffinity(0, sizeof processors, &processors));
    CPU_SET(0, &processors);
    show("the first", sched_setaffinity(0, sizeof processors, &processors));
    printf("runs on %d\n", sched_getcpu());
    heirs("its child", "its thread");
    return 0;
}
