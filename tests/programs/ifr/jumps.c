// SILENT
// setjmp, fork, signals and a child process beside threads.
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static long shared; static volatile sig_atomic_t hits;
static void on(int s) { (void)s; hits++; }
static void *work(void *p) {
    jmp_buf back; volatile int n = 0;
    if (setjmp(back) < 50) { pthread_mutex_lock(&m); shared++; pthread_mutex_unlock(&m); n = n + 1; longjmp(back, n); }
    return p;
}
int main(void) {
    pthread_t t; signal(SIGUSR1, on);
    pthread_create(&t, 0, work, 0);
    pthread_kill(t, SIGUSR1);
    work(0);
    pthread_join(t, 0);
    pid_t child = fork();
    if (!child) { pthread_create(&t, 0, work, 0); work(0); pthread_join(t, 0); _exit(shared == 200 ? 0 : 1); }
    int status; waitpid(child, &status, 0);
    printf("%ld %d\n", shared, WEXITSTATUS(status));
    return 0;
}
