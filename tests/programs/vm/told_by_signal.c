// Signals that a descriptor sends when something comes: SIGIO and another one,
// to the process and to a thread; who gets them; leases and watched folders.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static volatile sig_atomic_t last;

static void note(int signal) { last = signal; }

static void expect(const char *what, int wanted) {
    for (int i = 0; i < 2000 && last != wanted; i++) usleep(1000);
    printf("%s: %d\n", what, last);
    last = 0;
}

int main(void) {
    int ends[2], value;
    char byte;
    signal(SIGIO, note);
    signal(SIGUSR2, note);

    socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
    printf("own %d sig %d\n", fcntl(ends[0], F_GETOWN), fcntl(ends[0], F_GETSIG));
    fcntl(ends[0], F_SETOWN, getpid());
    fcntl(ends[0], F_SETFL, fcntl(ends[0], F_GETFL) | O_ASYNC);
    printf("own %d\n", fcntl(ends[0], F_GETOWN) == getpid());
    write(ends[1], "x", 1);
    expect("socket", SIGIO);
    read(ends[0], &byte, 1);

    printf("setsig %d\n", fcntl(ends[0], F_SETSIG, SIGUSR2));
    printf("sig %d\n", fcntl(ends[0], F_GETSIG) == SIGUSR2);
    write(ends[1], "x", 1);
    expect("another signal", SIGUSR2);
    read(ends[0], &byte, 1);

    value = 0;
    ioctl(ends[0], FIOASYNC, &value);
    write(ends[1], "x", 1);
    usleep(20000);
    printf("switched off: %d\n", last);

    struct f_owner_ex owner = {F_OWNER_TID, syscall(SYS_gettid)};
    printf("owner: %d\n", fcntl(ends[0], F_SETOWN_EX, &owner));
    value = 1;
    ioctl(ends[0], FIOASYNC, &value);
    write(ends[1], "y", 1);
    expect("a thread's", SIGUSR2);

    int tube[2];
    pipe(tube);
    fcntl(tube[0], F_SETOWN, getpid());
    fcntl(tube[0], F_SETFL, O_ASYNC);
    write(tube[1], "z", 1);
    expect("pipe", SIGIO);

    char folder[] = "watched-XXXXXX", file[64];
    mkdtemp(folder);
    snprintf(file, sizeof file, "%s/file", folder);
    int fd = open(folder, O_RDONLY | O_DIRECTORY);
    printf("notify: %d\n", fcntl(fd, F_NOTIFY, DN_CREATE));
    int leased = open(file, O_RDWR | O_CREAT, 0600);
    expect("folder", SIGIO);
    printf("lease: %d", fcntl(leased, F_SETLEASE, F_WRLCK));
    printf(" %d\n", fcntl(leased, F_GETLEASE) == F_WRLCK);
    printf("given up: %d", fcntl(leased, F_SETLEASE, F_UNLCK));
    printf(" %d\n", fcntl(leased, F_GETLEASE) == F_UNLCK);
    unlink(file);
    rmdir(folder);
    return 0;
}
