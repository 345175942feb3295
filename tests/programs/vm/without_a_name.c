// Programs that have no name (any more): a memfd, a removed file, a descriptor
// that is closed at the exec.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static void copy_self(int to) {
    char piece[65536];
    ssize_t length;
    int from = open("/proc/self/exe", O_RDONLY);
    while ((length = read(from, piece, sizeof piece)) > 0) write(to, piece, length);
    close(from);
}

static void start(int fd, char *word) {
    char *arguments[] = {"again", word, NULL};
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        syscall(SYS_execveat, fd, "", arguments, environ, AT_EMPTY_PATH);
        perror("execveat");
        _exit(1);
    }
    int status;
    waitpid(child, &status, 0);
    printf("%s: %#x\n", word, status);
}

int main(int count, char **words) {
    if (count == 2) {
        printf("%s: hello from %s\n", words[1], words[0]);
        return 3;
    }
    int fd = memfd_create("program", 0);
    copy_self(fd);
    start(fd, "memfd");
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    start(fd, "closed at exec");

    char name[] = "program-XXXXXX";
    int writer = mkstemp(name);
    copy_self(writer);
    fchmod(writer, 0700);
    close(writer);
    fd = open(name, O_RDONLY);
    start(fd, "named");
    unlink(name);
    start(fd, "removed");
    return 0;
}
