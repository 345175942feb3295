// fork, vfork (posix_spawn), exec, and threads that come and go while
// breakpoints stand everywhere. Every child must end well.
// EXPECT: silent
// OPTIONS: --rate 500
// ARGS: 4
#include "threads.h"
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>

extern char **environ;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
long total;

static void *brief(void *arg) {
  for (int i = 0; i < 1000; i++) {
    pthread_mutex_lock(&lock);
    total++;
    pthread_mutex_unlock(&lock);
  }
  return arg;
}

static int wait_for(pid_t child) {
  int status;
  return waitpid(child, &status, 0) == child && status == 0;
}

int main(int argc, char **argv) {
  if (argc > 2)
    return strlen(argv[2]) != 5;
  set_end(argc, argv);
  char *arguments[] = {argv[0], "0", "child", 0};
  while (running()) {
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
      pthread_create(&threads[i], 0, brief, 0);
    pid_t child = fork();
    if (child == 0) {
      volatile long own = 0;
      for (int i = 0; i < 100000; i++)
        own += strlen(argv[0]);
      _exit(own == 0);
    }
    pid_t spawned;
    if (posix_spawn(&spawned, argv[0], 0, 0, arguments, environ))
      return 1;
    if (!wait_for(child) || !wait_for(spawned))
      return 1;
    for (int i = 0; i < 4; i++)
      pthread_join(threads[i], 0);
  }
  puts("ok");
  return 0;
}
