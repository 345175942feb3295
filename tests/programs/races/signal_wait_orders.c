#include "two.h"
#include <signal.h>
#include <sys/signalfd.h>
// Who waits for a signal comes after who sent it.
static int first, second;
static sigset_t both, one, other;
static void *sends(void *x) {
    first = 1;
    kill(getpid(), SIGUSR1);
    return x;
}
static void *waits(void *x) {
    int number;
    if (sigwait(&one, &number) || number != SIGUSR1)
        abort();
    printf("%d\n", first);
    second = 2;
    kill(getpid(), SIGUSR2);
    return x;
}
int main(void) {
    struct signalfd_siginfo told;
    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    sigemptyset(&other);
    sigaddset(&other, SIGUSR2);
    sigemptyset(&both);
    sigaddset(&both, SIGUSR1);
    sigaddset(&both, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &both, 0);
    int descriptor = signalfd(-1, &other, 0);
    pthread_t thread[2];
    pthread_create(&thread[0], 0, sends, 0);
    pthread_create(&thread[1], 0, waits, 0);
    if (read(descriptor, &told, sizeof told) != sizeof told)
        return 1;
    printf("%d\n", second);
    pthread_join(thread[0], 0);
    pthread_join(thread[1], 0);
}
