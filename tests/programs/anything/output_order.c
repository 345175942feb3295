// Four processes write lines to one stream at the same time: a replay shows
// them in the order of the recorded run.
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
    for (int child = 0; child < 4; child++) {
        if (fork() == 0) {
            for (int line = 0; line < 200; line++)
                dprintf(1, "child %d, line %d\n", child, line);
            return 0;
        }
    }
    while (wait(0) > 0)
        ;
    return 0;
}
