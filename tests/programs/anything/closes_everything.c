// Closes every descriptor there is, then opens one again and goes on.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int main(void) {
    int saved = dup(1);
    write(saved, "before\n", 7);
    close_range(0, saved - 1, 0);
    close_range(saved + 1, ~0u, 0);
    for (int fd = 0; fd < 70000; fd++)
        if (fd != saved)
            close(fd);
    int fd = open("f", O_CREAT | O_RDWR, 0600);
    write(fd, "x", 1);
    char text[32];
    int n = snprintf(text, sizeof text, "got %d\n", fd);
    write(saved, text, n);
    close(saved);
    for (int other = 0; other < 64; other++)
        close(other);
    return write(1, "lost\n", 5) < 0 ? 9 : 1;
}
