// Stores through wild pointers, and kernel calls told to write to them: each
// must fault or fail, wherever it points outside the program's own memory.
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
static sigjmp_buf back;
static void handler(int signal) {
    siglongjmp(back, signal);
}
int main(void) {
    signal(SIGSEGV, handler);
    signal(SIGBUS, handler);
    static const unsigned long wild[] = {
        0, 0x1000, 0x123456789000, 0x2fff00001000, 0xffff800000000000, 0xffffffffff600000, 0x8000000000000000,
    };
    int pipes[2];
    if (pipe(pipes))
        return 1;
    for (unsigned i = 0; i < sizeof wild / sizeof *wild; i++) {
        int signal = sigsetjmp(back, 1);
        if (signal == 0) {
            *(volatile int *)wild[i] = 42;
            printf("%lx: stored\n", wild[i]);
        } else
            printf("%lx: signal %d", wild[i], signal);
        int result = write(pipes[1], "x", 1) == 1 ? read(pipes[0], (void *)wild[i], 1) : 0;
        printf(", read %d errno %d", result, result < 0 ? errno : 0);
        result = stat("/", (void *)wild[i]);
        printf(", stat %d errno %d\n", result, result < 0 ? errno : 0);
    }
    return 0;
}
