// RACE counter
// The race is in a forked child; the parent has none of its own.
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
long counter;
static __attribute__((noinline)) void add(void) { counter++; }
static void *work(void *p) { for (int i = 0; i < 2000000; i++) add(); return p; }
int main(void) {
    pid_t child = fork();
    if (child) { int status; waitpid(child, &status, 0); return WEXITSTATUS(status); }
    pthread_t t;
    pthread_create(&t, 0, work, 0);
    work(0);
    pthread_join(t, 0);
    return 0;
}
