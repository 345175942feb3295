// Gives up its rights (if it has them) and goes on as somebody else.
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
    mkdir("d", 0777);
    chmod("d", 0777);
    if (geteuid() == 0 && (setgroups(0, NULL) || setgid(65534) || setuid(65534)))
        return 1;
    printf("%d %d\n", getuid() == geteuid(), open("/etc/shadow", O_RDONLY) < 0);
    fflush(stdout);
    if (fork() == 0) {
        execlp("id", "id", "-u", (char *)NULL);
        _exit(1);
    }
    int status;
    wait(&status);
    printf("%d\n", status);
    return 0;
}
