// Far transfers, gates, segment registers, flags that disturb whoever runs the
// program, and instructions of the kernel's: each ends or faults as natively.
// identity: output as natively
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

static sigjmp_buf back;
static volatile long caught[4], at;

static void on_signal(int number, siginfo_t *info, void *frame) {
    ucontext_t *context = frame;
    caught[0] = number;
    caught[1] = info->si_code;
    caught[2] = context->uc_mcontext.gregs[REG_TRAPNO];
    caught[3] = context->uc_mcontext.gregs[REG_ERR];
    at = context->uc_mcontext.gregs[REG_RIP];
    siglongjmp(back, 1);
}

static void show(const char *name, long start) {
    // Faults lie at the instruction, traps behind it, those of a jump at its target.
    long offset = at - start < 4096 ? at - start : at;
    printf("%s: signal %ld code %ld trap %ld error %#lx offset %ld\n", name, caught[0],
           caught[1], caught[2], caught[3], offset);
}

volatile long faulting;

// The instructions use rax, rcx and rdx only, and nothing that lives across them.
#define FAULTS(name, text)                                                               \
    do {                                                                                 \
        memset((void *)caught, 0, sizeof caught);                                        \
        if (!sigsetjmp(back, 1)) {                                                       \
            __asm__ volatile("" ::: "rax", "rcx", "rdx", "memory");                      \
            __asm__("lea 1f(%rip), %rax; mov %rax, faulting(%rip); 1: " text);           \
            __asm__ volatile("" ::: "rax", "rcx", "rdx", "memory");                      \
            printf("%s: went on\n", name);                                               \
        } else {                                                                         \
            show(name, faulting);                                                        \
        }                                                                                \
    } while (0)

static void faults(void) {
    FAULTS("int 1", "int $1");
    FAULTS("int 3", ".byte 0xcd, 3");
    FAULTS("int3", "int3");
    FAULTS("int3, with prefixes", ".byte 0x66, 0x48, 0xcc");
    FAULTS("int 4", "int $4");
    FAULTS("int 13", "int $13");
    FAULTS("int 0x81", "int $0x81");
    FAULTS("int 0xff", "int $0xff");
    FAULTS("ud2", "ud2");
    FAULTS("hlt", "hlt");
    FAULTS("cli", "cli");
    FAULTS("in", "in $0x70, %al");
    FAULTS("out", "out %al, $0x70");
    FAULTS("insb", "insb");
    FAULTS("wbinvd", "wbinvd");
    FAULTS("swapgs", "swapgs");
    FAULTS("sysretq", "sysretq");
    FAULTS("sysretl", "sysretl");
    FAULTS("rsm", "rsm");
    FAULTS("rdmsr", "rdmsr");
    FAULTS("xsetbv", "xsetbv");
    FAULTS("mov to cr3", "mov %rax, %cr3");
    FAULTS("mov to dr7", "mov %rax, %dr7");
    FAULTS("lgdt", "lgdt -64(%rsp)");
    FAULTS("lidt", "lidt -64(%rsp)");
    FAULTS("lldt", "mov $0x28, %eax; lldt %ax");
    FAULTS("lmsw", "lmsw %ax");
    FAULTS("clts", "clts");
    FAULTS("invlpg", "invlpg (%rsp)");
    FAULTS("mwait", "mwait");
    FAULTS("cs = data", "push $0x2b; lea 2f(%rip), %rax; push %rax; lretq; 2:");
    FAULTS("cs = kernel's", "push $0x10; lea 2f(%rip), %rax; push %rax; lretq; 2:");
    FAULTS("cs = null", "push $0; lea 2f(%rip), %rax; push %rax; lretq; 2:");
    FAULTS("cs = ldt", "push $0x3f; lea 2f(%rip), %rax; push %rax; lretq; 2:");
    FAULTS("far, not canonical",
           "push $0x33; mov $0x800000000000, %rax; push %rax; lretq");
    FAULTS("iret to a null stack segment",
           "mov %rsp, %rcx; push $0; push %rcx; pushfq; push $0x33; lea 2f(%rip), %rax; "
           "push %rax; iretq; 2:");
    FAULTS("iret to the kernel",
           "mov %rsp, %rcx; push $0x18; push %rcx; pushfq; push $0x10; lea 2f(%rip), %rax; "
           "push %rax; iretq; 2:");
    FAULTS("ds = kernel's", "mov $0x18, %eax; mov %eax, %ds");
    FAULTS("es beyond the table", "mov $0xfff8, %eax; mov %eax, %es");
    FAULTS("ss = null", "xor %eax, %eax; mov %eax, %ss");
    FAULTS("ss = code", "mov $0x33, %eax; mov %eax, %ss");
    FAULTS("fs = kernel's", "mov $0x18, %eax; mov %eax, %fs");
    FAULTS("gs = kernel's", "mov $0x13, %eax; mov %eax, %gs");
    FAULTS("gs = empty", "mov $0x63, %eax; mov %eax, %gs");
    FAULTS("gs = ldt", "mov $7, %eax; mov %eax, %gs");
    FAULTS("pop gs", "push $0x40; pop %gs");
    FAULTS("lgs", "mov $0x1800000000, %rax; mov %rax, -64(%rsp); lgs -64(%rsp), %eax");
    FAULTS("wrfsbase", "mov $0x8000000000000000, %rax; wrfsbase %rax");
    FAULTS("wrgsbase", "mov $0x1000000000000, %rax; wrgsbase %rax");
    FAULTS("a jump to nowhere", "mov $0x600001100000, %rax; jmp *%rax");
    FAULTS("not canonical", "mov $0x8000000000000000, %rax; jmp *%rax");
    FAULTS("xrstor", "lea -4096(%rsp), %rcx; and $-64, %rcx; movq $-1, 512(%rcx); "
                     "movq $-1, 520(%rcx); mov $-1, %eax; mov $-1, %edx; xrstor (%rcx)");
    FAULTS("mxcsr", "movl $-1, -64(%rsp); ldmxcsr -64(%rsp)");
    FAULTS("fxrstor", "lea -4096(%rsp), %rcx; and $-64, %rcx; movl $-1, 24(%rcx); fxrstor (%rcx)");
    FAULTS("xsave, askew", "lea -4095(%rsp), %rcx; or $1, %rcx; xsave (%rcx)");
}

static long far(void) {
    long result = 0, stack;
    __asm__ volatile("push $0x33; lea 1f(%%rip), %%rax; push %%rax; lretq; 1: add $1, %0"
                     : "+r"(result)::"rax", "memory");
    __asm__ volatile("push $0x33; lea 1f(%%rip), %%rax; push %%rax; sub $24, %%rsp; add $24, %%rsp;"
                     "lretq; 1: add $2, %0"
                     : "+r"(result)::"rax", "memory");
    __asm__ volatile("sub $32, %%rsp; push $0x33; lea 1f(%%rip), %%rax; push %%rax;"
                     ".byte 0x48, 0xca, 32, 0; 1: add $4, %0"
                     : "+r"(result)::"rax", "memory");
    __asm__ volatile("mov %%rsp, %1; push $0x2b; push %1; pushfq; push $0x33;"
                     "lea 1f(%%rip), %%rax; push %%rax; iretq; 1: add $8, %0"
                     : "+r"(result), "=&r"(stack)::"rax", "memory");
    // Another stack, other flags.
    static char other[4096];
    long flags;
    __asm__ volatile("mov %%rsp, %%rbx; push $0x2b; lea 4000(%2), %%rax; push %%rax; push $0x47;"
                     "push $0x33; lea 1f(%%rip), %%rax; push %%rax; iretq; 1: pushfq; pop %1;"
                     "mov %%rbx, %%rsp"
                     : "+r"(result), "=&r"(flags)
                     : "r"(other)
                     : "rax", "rbx", "memory");
    return result * 100000 + (flags & 0xcd5);
}

// Through pointers of 32 bits: code that lies low.
static long low(void) {
    unsigned char *code = mmap((void *)0x10000000, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (code == MAP_FAILED)
        return -1;
    // lcall *0x100(%rip) to 0x200; mov $5, %eax; ret
    memcpy(code, "\xff\x1d\xfa\x00\x00\x00\x83\xc0\x05\xc3", 10);
    uint32_t offset = 0x10000200;
    uint16_t selector = 0x33;
    memcpy(code + 0x100, &offset, 4);
    memcpy(code + 0x104, &selector, 2);
    // mov $3, %eax; lret
    memcpy(code + 0x200, "\xb8\x03\x00\x00\x00\xcb", 6);
    long sum = ((int (*)(void))code)();
    // ljmp *0xfa(%rip) to 0x300; there: mov $7, %eax; ret
    memcpy(code, "\xff\x2d\xfa\x00\x00\x00", 6);
    offset = 0x10000300;
    memcpy(code + 0x100, &offset, 4);
    memcpy(code + 0x300, "\xb8\x07\x00\x00\x00\xc3", 6);
    return sum * 10 + ((int (*)(void))code)();
}

// At the end of a page: what is no instruction is none, whatever comes behind.
static void at_the_end(void) {
    unsigned char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE | PROT_EXEC,
                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(page + 4096, 4096);
    static const unsigned char codes[][3] = {{0x90, 0x90, 0x06}, {0x90, 0x0f, 0x0b}, {0x90, 0x0f, 0x38}};
    for (int i = 0; i < 3; i++) {
        memcpy(page + 4093, codes[i], 3);
        faulting = (long)page;
        if (!sigsetjmp(back, 1))
            ((void (*)(void))(page + 4093))();
        show("at the end", faulting + 4000);
    }
}

static void segments(void) {
    // What a C library keeps in FS comes back with wrfsbase.
    unsigned long fs, after, gs;
    __asm__ volatile("rdfsbase %0; mov $0, %%eax; mov %%eax, %%fs; rdfsbase %1; wrfsbase %0"
                     : "=&r"(fs), "=&r"(after)::"rax");
    printf("fs = null: base %#lx\n", after);
    __asm__ volatile("rdfsbase %0; mov $0x2b, %%eax; mov %%eax, %%fs; rdfsbase %1; wrfsbase %0;"
                     "xor %%eax, %%eax; mov %%eax, %%fs; wrfsbase %0"
                     : "=&r"(fs), "=&r"(after)::"rax");
    printf("fs = data: base %#lx\n", after);
    __asm__ volatile("push $0; pop %%fs; rdfsbase %1; wrfsbase %0"
                     : "+&r"(fs), "=&r"(after)::"memory");
    printf("pop fs: base %#lx\n", after);
    __asm__ volatile("mov $0x12345678, %%eax; wrgsbase %%rax; mov $0x2b, %%ecx; mov %%ecx, %%gs;"
                     "rdgsbase %0; xor %%ecx, %%ecx; mov %%ecx, %%gs; rdgsbase %1"
                     : "=&r"(gs), "=&r"(after)::"rax", "rcx");
    printf("gs: base %#lx, %#lx\n", gs, after);
    __asm__ volatile("mov %%ds, %%ecx; mov $0x2b, %%eax; mov %%eax, %%ds; mov %%eax, %%es;"
                     "mov %%eax, %%ss; mov %%ecx, %%ds; mov %%ecx, %%es" ::: "rax", "rcx");
    printf("ds, es, ss\n");
}

static void *busy(void *text) {
    for (int i = 0; i < 20000; i++)
        __asm__ volatile("" ::: "memory");
    return text;
}

static void flags(void) {
    // Alignment checks, direction, exceptions of both kinds of arithmetic: a system
    // call and a switch of threads in between must not mind.
    char bytes[16] = "0123456789abcde";
    long result = SYS_getppid, first = syscall(SYS_getppid);
    __asm__ volatile("pushfq; orq $0x40000, (%%rsp); popfq; syscall; pushfq; andq $~0x40000, (%%rsp);"
                     "popfq" : "+a"(result)::"rcx", "r11", "memory", "cc");
    printf("alignment: %d\n", result == first);
    char text[] = "direction\n";
    result = SYS_write;
    __asm__ volatile("std; syscall; cld" : "+a"(result)
                     : "D"(1), "S"(text), "d"(sizeof text - 1) : "rcx", "r11", "memory");
    result = SYS_gettid;
    __asm__ volatile("pushfq; orq $0x4400, (%%rsp); popfq; syscall; pushfq; pop %%rbx; push $2;"
                     "popfq; and $0x4400, %%ebx"
                     : "+a"(result)::"rbx", "rcx", "r11", "memory", "cc");
    printf("nested task: %d\n", result > 0);
    unsigned control = 0x1f80 & ~0x1f80, kept;
    short word = 0x0340;
    pthread_t thread;
    __asm__ volatile("ldmxcsr %0" ::"m"(control));
    __asm__ volatile("fldcw %0" ::"m"(word));
    pthread_create(&thread, NULL, busy, NULL);
    for (int i = 0; i < 50; i++)
        syscall(SYS_sched_yield);
    pthread_join(thread, NULL);
    control = 0x1f80;
    __asm__ volatile("stmxcsr %0; ldmxcsr %1" : "=m"(kept) : "m"(control));
    __asm__ volatile("fninit");
    printf("exceptions not masked: %#x\n", kept & 0x1f80);
    // An x87 exception that is pending over a system call.
    memset((void *)caught, 0, sizeof caught);
    if (!sigsetjmp(back, 1)) {
        result = SYS_getppid;
        __asm__ volatile("fldcw %1; fldz; fld1; fdivp; syscall; fwait"
                         : "+a"(result) : "m"(word), "m"(bytes) : "rcx", "r11", "memory");
        printf("no exception\n");
    } else {
        __asm__ volatile("fninit");
        printf("x87: signal %ld trap %ld\n", caught[0], caught[2]);
    }
}

int main(void) {
    static char stack[1 << 16];
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    sigaltstack(&alternate, NULL);
    struct sigaction action = {.sa_sigaction = on_signal,
                               .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 0; i < 5; i++)
        sigaction((int[]){SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGFPE}[i], &action, NULL);
    faults();
    printf("far: %ld\n", far());
    printf("low: %ld\n", low());
    at_the_end();
    segments();
    flags();
    return 0;
}
