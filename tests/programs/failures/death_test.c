// A child that is to die, and does. WELL
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void)
{
    int status;
    if (fork() == 0)
        abort();
    wait(&status);
    puts(WIFSIGNALED(status) ? "it died, as it should" : "it lives");
    return !WIFSIGNALED(status);
}
