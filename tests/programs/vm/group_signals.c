// Signals to process groups and to oneself: before kill returns, to handlers,
// to members that die, to threads by their own id, and at last to all.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int seen, own;

static void on(int sig, siginfo_t *info, void *context) {
    (void)context;
    seen += sig == SIGUSR1 ? 1 : 100;
    own = info->si_pid == getpid() && info->si_code == SI_USER;
}

static void handle(int sig) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on;
    action.sa_flags = SA_SIGINFO;
    sigaction(sig, &action, NULL);
}

static void show(const char *what, pid_t pid) {
    int status;
    pid_t got = waitpid(pid, &status, 0);
    printf("%s: %d exited %d code %d signalled %d by %d\n", what, got == pid, WIFEXITED(status),
           WIFEXITED(status) ? WEXITSTATUS(status) : 0, WIFSIGNALED(status),
           WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    fflush(stdout);
}

// A child that leads a group of its own.
static pid_t leader(void) {
    fflush(stdout);
    pid_t pid = fork();
    setpgid(pid, pid);
    return pid;
}

static void *stop_by_thread_id(void *arg) {
    // A thread's id stands for the whole process.
    printf("to a thread: %d\n", kill(gettid(), SIGUSR1));
    return arg;
}

int main(void) {
    int ready[2], go[2];
    char byte;

    // Handlers have run when kill returns.
    pid_t pid = leader();
    if (pid == 0) {
        handle(SIGUSR1);
        int one = kill(0, SIGUSR1);
        printf("group: %d seen %d own %d\n", one, seen, own);
        one = kill(-getpgrp(), SIGUSR1);
        printf("by number: %d seen %d\n", one, seen);
        printf("nothing: %d, nobody: %d %s\n", kill(0, 0), kill(-0x3ffffff0, 0),
               strerrorname_np(errno));
        printf("wrong: %d %s\n", kill(0, 65), strerrorname_np(errno));
        sigset_t set, old, pending;
        sigemptyset(&set);
        sigaddset(&set, SIGUSR1);
        sigprocmask(SIG_BLOCK, &set, &old);
        kill(0, SIGUSR1);
        sigpending(&pending);
        printf("blocked: seen %d pending %d\n", seen, sigismember(&pending, SIGUSR1));
        sigprocmask(SIG_SETMASK, &old, NULL);
        printf("let through: seen %d\n", seen);
        signal(SIGUSR1, SIG_IGN);
        kill(0, SIGUSR1);
        printf("ignored: seen %d\n", seen);
        handle(SIGUSR1);
        pthread_t thread;
        pthread_create(&thread, NULL, stop_by_thread_id, NULL);
        pthread_join(thread, NULL);
        printf("seen %d\n", seen);
        fflush(stdout);
        kill(0, SIGTERM);
        printf("not here\n");
        exit(1);
    }
    show("leader", pid);

    // All members get it, whoever sends it, and by whichever signal they die.
    int signals[] = {SIGTERM, SIGKILL, SIGABRT, SIGQUIT};
    for (int i = 0; i < 4; i++) {
        pipe(ready);
        pid = leader();
        if (pid == 0) {
            setpgid(0, 0);
            pid_t member = fork();
            if (member == 0) {
                write(ready[1], "m", 1);
                for (;;) pause();
            }
            read(ready[0], &byte, 1);
            write(ready[1], &member, sizeof member);
            kill(i % 2 ? 0 : -getpgrp(), signals[i]);
            printf("not here\n");
            exit(1);
        }
        show("member and leader", pid);
        pid_t member;
        read(ready[0], &member, sizeof member);
        close(ready[0]);
        close(ready[1]);
    }

    // A group that one is not in.
    pipe(ready);
    pid = leader();
    if (pid == 0) {
        write(ready[1], "r", 1);
        for (;;) pause();
    }
    read(ready[0], &byte, 1);
    printf("other group: %d\n", kill(-pid, SIGKILL));
    show("other group", pid);

    // A grandchild that is killed, and its parent that waits for it.
    pipe(ready);
    pipe(go);
    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        pid_t grandchild = fork();
        if (grandchild == 0) {
            printf("grandchild\n");
            fflush(stdout);
            pid_t self = getpid();
            write(ready[1], &self, sizeof self);
            for (volatile int i = 0;; i++) {}
        }
        show("grandchild", grandchild);
        exit(3);
    }
    pid_t grandchild;
    read(ready[0], &grandchild, sizeof grandchild);
    printf("kill: %d\n", kill(grandchild, SIGKILL));
    show("child", pid);

    // One that has stopped.
    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        raise(SIGSTOP);
        printf("not here\n");
        exit(1);
    }
    int status;
    waitpid(pid, &status, WUNTRACED);
    printf("stopped %d\n", WIFSTOPPED(status));
    kill(pid, SIGKILL);
    show("stopped", pid);

    setpgid(0, 0);
    printf("end\n");
    fflush(stdout);
    kill(0, SIGABRT);
    printf("not here\n");
    return 0;
}
