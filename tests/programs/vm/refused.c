// What the vm does not do is refused with an error, and said once.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/perf_event.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static void say(const char *what, long result) {
    printf("%s: %s\n", what, result < 0 ? strerrorname_np(errno) : "done");
}

int main(void) {
    struct sock_filter allow = {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW};
    struct sock_fprog filter = {1, &allow};
    struct perf_event_attr event = {.type = PERF_TYPE_SOFTWARE, .size = sizeof event};
    char buffer[4096], stack[64];
    // Twice: the second time nothing is said.
    for (int i = 0; i < 2; i++) {
        say("ptrace", syscall(SYS_ptrace, 0, 0, 0, 0));
        say("seccomp", syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter));
        say("PR_SET_SECCOMP", prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter));
        say("unshare", unshare(CLONE_NEWUSER));
        say("setns", setns(0, CLONE_NEWNET));
        say("clone with a namespace", syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, 0, 0, 0, 0));
        say("clone with memory", syscall(SYS_clone, CLONE_VM | SIGCHLD, stack + 64, 0, 0, 0));
        say("perf_event_open", syscall(SYS_perf_event_open, &event, 0, -1, -1, 0));
        say("io_uring_setup", syscall(SYS_io_uring_setup, 8, buffer));
        say("userfaultfd", syscall(SYS_userfaultfd, 0));
        say("bpf", syscall(SYS_bpf, 0, buffer, 64));
        say("process_vm_readv", syscall(SYS_process_vm_readv, getppid(), 0, 0, 0, 0, 0));
    }
    // What is the process's own already.
    say("unshare of files", unshare(CLONE_FILES | CLONE_FS));
    // A question, no filter.
    say("PR_GET_SECCOMP", prctl(PR_GET_SECCOMP));
    // What the kernel refuses as well, without a word.
    say("handlers without memory", syscall(SYS_clone, CLONE_SIGHAND | SIGCHLD, 0, 0, 0, 0));
    return 0;
}
