// The program uses SIGTRAP itself, by int3, int1 and raise, and threads that
// block every signal run beside it. All of its traps arrive, and no other.
// EXPECT: silent
// OPTIONS: --rate 500
// ARGS: 4
#include "threads.h"
#include <signal.h>
#include <sys/wait.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static volatile sig_atomic_t traps;
long total;

static void handler(int signal) { traps += signal == SIGTRAP; }

static void second_trap_ends(int signal) {
  if (++traps > 1)
    _exit(signal);
}

// Some virtual machines never get past an int1: it traps again and again, also
// with nobody sampling. There the program does without.
static int int1_is_one_trap(void) {
  pid_t child = fork();
  if (!child) {
    struct sigaction action = {.sa_handler = second_trap_ends};
    sigaction(SIGTRAP, &action, 0);
    alarm(1);
    __asm__ volatile(".byte 0xf1"); // int1
    _exit(0);
  }
  int status = 1;
  waitpid(child, &status, 0);
  return status == 0;
}

static void *blocked(void *arg) {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, 0);
  while (running())
    for (int i = 0; i < 1000; i++) {
      pthread_mutex_lock(&lock);
      total++;
      pthread_mutex_unlock(&lock);
    }
  pthread_sigmask(SIG_BLOCK, 0, &all);
  return sigismember(&all, SIGTRAP) ? arg : (void *)1;
}

int main(int argc, char **argv) {
  struct sigaction action = {.sa_handler = handler};
  sigaction(SIGUSR1, &action, 0);
  set_end(argc, argv);
  pthread_t thread;
  pthread_create(&thread, 0, blocked, 0);
  sigaction(SIGTRAP, &action, 0);
  long expected = 0;
  int int1 = int1_is_one_trap();
  while (running()) {
    sigaction(SIGTRAP, &action, 0);
    __asm__ volatile("int3");
    if (int1)
      __asm__ volatile(".byte 0xf1"); // int1
    raise(SIGTRAP);
    expected += 2 + int1;
    usleep(1000);
  }
  void *result;
  pthread_join(thread, &result);
  if (traps != expected || result)
    return 1;
  puts("ok");
  return 0;
}
