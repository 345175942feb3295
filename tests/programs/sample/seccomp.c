// A program under a strict seccomp filter, with code made at run time: nothing
// of the sampler runs in it, so nothing is refused.
// EXPECT: race tag=jit
// ARGS: 4
#include "threads.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

long cell;
static void (*generated)(long *);

__attribute__((noinline)) static void plain(void) {
  cell = cell * 7 + 1; // RACE jit
}

static void *work(void *arg) {
  while (running())
    for (int i = 0; i < 1000; i++) {
      if (arg)
        generated(&cell);
      plain();
    }
  return arg;
}

static int allow_little(void) {
  struct sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      // ptrace, perf_event_open and process_vm_readv kill.
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ptrace, 3, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_perf_event_open, 2, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigaction, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
  };
  struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

int main(int argc, char **argv) {
  // incq (%rdi); ret
  static const unsigned char code[] = {0x48, 0xff, 0x07, 0xc3};
  void *page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  memcpy(page, code, sizeof code);
  if (mprotect(page, 4096, PROT_READ | PROT_EXEC))
    return 1;
  generated = (void (*)(long *))page;
  pthread_t thread;
  set_end(argc, argv);
  if (pthread_create(&thread, 0, work, (void *)1) || allow_little())
    return 1;
  work(0);
  pthread_join(thread, 0);
  puts("ok");
  return 0;
}
