// Unmaps the whole address space under itself: dies of SIGSEGV as natively.
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(void) {
    write(1, "going\n", 6);
    syscall(SYS_munmap, 0x10000ul, 0x7fffffff0000ul - 0x10000ul - 0x10000000ul);
    syscall(SYS_munmap, 0ul, 0x7ffffffff000ul);
    return 0;
}
