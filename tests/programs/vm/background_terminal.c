// A process in the background of its terminal that changes the terminal: it
// stops and does it when it goes on, or is told EINTR after its handler, or may
// if it ignores or blocks SIGTTOU.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

static volatile int handled;

static void handler(int signal) {
    handled++;
    (void)signal;
}

static int change(int terminal) {
    struct termios settings;
    if (tcgetattr(terminal, &settings) != 0) return -errno;
    settings.c_lflag ^= ECHO;
    return tcsetattr(terminal, TCSANOW, &settings) == 0 ? 0 : -errno;
}

enum way { DEFAULT, HANDLED, IGNORED, BLOCKED };

static int background(int terminal, enum way way) {
    setpgid(0, 0);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTTOU);
    struct sigaction action = {.sa_handler = handler};
    switch (way) {
    case DEFAULT: break;
    case HANDLED: sigaction(SIGTTOU, &action, NULL); break;
    case IGNORED: signal(SIGTTOU, SIG_IGN); break;
    case BLOCKED: sigprocmask(SIG_BLOCK, &set, NULL); break;
    }
    int result = change(terminal);
    if (way == HANDLED) return result == -EINTR && handled == 1 ? 5 : 6;
    return result == 0 ? 7 : 8;
}

static void lead(const char *name) {
    setsid();
    int terminal = open(name, O_RDWR);
    if (terminal < 0 || ioctl(terminal, TIOCSCTTY, 0) != 0) {
        printf("no terminal\n");
        exit(1);
    }
    const char *ways[] = {"default", "handled", "ignored", "blocked"};
    for (enum way way = DEFAULT; way <= BLOCKED; way++) {
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) _exit(background(terminal, way));
        setpgid(child, child);
        int status;
        waitpid(child, &status, WUNTRACED);
        if (WIFSTOPPED(status)) {
            printf("%s: stopped by %d\n", ways[way], WSTOPSIG(status));
            tcsetpgrp(terminal, child);
            kill(child, SIGCONT);
            waitpid(child, &status, 0);
            signal(SIGTTOU, SIG_IGN);
            tcsetpgrp(terminal, getpid());
            signal(SIGTTOU, SIG_DFL);
        }
        printf("%s: exit %d\n", ways[way], WEXITSTATUS(status));
    }
    fflush(stdout);
    _exit(0);
}

int main(void) {
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    grantpt(master);
    unlockpt(master);
    fflush(stdout);
    pid_t leader = fork();
    if (leader == 0) lead(ptsname(master));
    int status;
    waitpid(leader, &status, 0);
    printf("leader: %#x\n", status);
    return 0;
}
