// What a guest may not have is refused with the error that makes programs do
// without. Under the vm (argument or not, the answers only have to be errors
// that fall-backs know).
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
static int refused(const char *name, long result) {
    int known = result < 0 && (errno == ENOSYS || errno == EPERM || errno == EACCES || errno == EINVAL || errno == EFAULT || errno == ESRCH);
    printf("%s: %s\n", name, result < 0 ? strerrorname_np(errno) : "allowed");
    return result >= 0 || known ? 0 : 1;
}
int main(void) {
    int bad = 0;
    char buffer[256] = {0};
    bad += refused("io_uring_setup", syscall(SYS_io_uring_setup, 8, NULL));
    bad += refused("userfaultfd", syscall(SYS_userfaultfd, -1));
    bad += refused("bpf", syscall(SYS_bpf, 99, buffer, 0));
    bad += refused("rseq", syscall(SYS_rseq, buffer, 1, 0, 0));
    bad += refused("perf_event_open", syscall(SYS_perf_event_open, NULL, 0, -1, -1, 0));
    bad += refused("ptrace", syscall(SYS_ptrace, 16, 1, 0, 0));
    bad += refused("seccomp", syscall(SYS_seccomp, 99, 0, NULL));
    bad += refused("clone3", syscall(SYS_clone3, NULL, 0));
    bad += refused("futex_waitv", syscall(SYS_futex_waitv, NULL, 0, 0, NULL, 0));
    bad += refused("unshare", syscall(SYS_unshare, 0x80000000ul));
    bad += refused("landlock", syscall(SYS_landlock_create_ruleset, NULL, 7, 99));
    bad += refused("pkey_alloc", syscall(SYS_pkey_alloc, 99, 0));
    bad += refused("unknown call", syscall(1999));
    return bad;
}
