// Two processes race on memory they share.
// EXPECT: race tag=shared
// ARGS: 4
#include "threads.h"
#include <sys/mman.h>
#include <sys/wait.h>

__attribute__((noinline)) static void bump(long *cell) {
  *cell = *cell * 5 + 1; // RACE shared
}

int main(int argc, char **argv) {
  set_end(argc, argv);
  long *cell = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                    -1, 0);
  pid_t child = fork();
  while (running())
    for (int i = 0; i < 1000; i++)
      bump(cell);
  if (child == 0)
    _exit(0);
  int status;
  if (waitpid(child, &status, 0) != child || status != 0)
    return 1;
  puts("ok");
  return 0;
}
