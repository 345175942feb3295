// identity: output as natively
// XSAVE, XSAVEC, XSAVEOPT, XRSTOR, XGETBV(1) and signal frames, with registers
// that come into use and go out of it: what a processor notes of that differs
// from run to run, and must be nowhere in memory. What is loaded again is what
// was stored, and areas that cannot be stored to or loaded fault as natively.
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { AREA = 4096, ROUNDS = 20000 };
// What was seen in all rounds stays in memory for the comparison at the end.
static uint64_t kept[2][3], frames[2], in_use[2];
static __thread int number;

static void keep(uint64_t *sum, const unsigned char *header) {
    for (int i = 0; i < 64; i++)
        *sum = *sum * 31 + header[i];
}

#define STORE(name, area, mask)                                                                    \
    __asm__ volatile(name " %0" : "+m"(*(unsigned char(*)[AREA])(area)) : "a"(mask), "d"(0))
#define LOAD(area, mask)                                                                           \
    __asm__ volatile("xrstor %0" : : "m"(*(unsigned char(*)[AREA])(area)), "a"(mask), "d"(0)       \
                     : "memory", "xmm0", "xmm1", "xmm15")

static void handler(int signal, siginfo_t *info, void *context) {
    unsigned char *frame = (void *)((ucontext_t *)context)->uc_mcontext.fpregs;
    keep(&frames[number], frame + 512);
}

static uint64_t components_in_use(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(1));
    return (uint64_t)high << 32 | low;
}

static void *work(void *argument) {
    number = argument != 0;
    unsigned char area[AREA] __attribute__((aligned(64)));
    unsigned char values[16], loaded[16];
    long wrong = 0;
    for (int i = 0; i < ROUNDS; i++) {
        // In use or not, in turns that are not those of the other thread.
        if (i % (5 + number) == 0)
            __asm__ volatile("vzeroall" ::: "xmm0", "xmm1", "xmm15");
        if (i % 7 == number)
            __asm__ volatile("vpcmpeqd %%ymm15, %%ymm15, %%ymm15" ::: "xmm15");
        if (i % 11 == 3)
            __asm__ volatile("fninit");
        if (i % 13 == 5)
            __asm__ volatile("fldpi; fstp %%st(0)" ::: "st");
        memset(area, i, sizeof area);
        memset(area + 512, 0, 64);
        STORE("xsave", area, 7);
        keep(&kept[number][0], area + 512);
        memset(area + 512, 0, 64);
        STORE("xsaveopt", area, 7);
        keep(&kept[number][1], area + 512);
        memset(values, i + number, sizeof values);
        memset(area + 512, 0, 64);
        __asm__ volatile("movdqu %2, %%xmm1; xsavec %0; pxor %%xmm1, %%xmm1;"
                         "xrstor %0; movdqu %%xmm1, %1"
                         : "+m"(area), "=m"(loaded)
                         : "m"(values), "a"(7), "d"(0)
                         : "xmm0", "xmm1", "xmm15");
        keep(&kept[number][2], area + 512);
        wrong += memcmp(values, loaded, sizeof values) != 0;
        in_use[number] = in_use[number] * 31 + components_in_use();
        if (i % 20 == 0)
            raise(SIGUSR1);
    }
    return (void *)wrong;
}

static sigjmp_buf back;
static volatile int code;
static void *volatile where;

static void fault(int signal, siginfo_t *info, void *context) {
    code = info->si_code;
    where = info->si_addr;
    siglongjmp(back, signal);
}

static unsigned char *pages;

static void says(const char *what, int signal) {
    printf("%s: signal %d code %d", what, signal, code);
    if (signal == SIGSEGV && code < 128)
        printf(" at %ld", (long)((unsigned char *)where - pages));
    printf("\n");
    code = 0;
}

#define FAULTS(what, action)                                                                       \
    do {                                                                                           \
        int signal = sigsetjmp(back, 1);                                                           \
        if (!signal) {                                                                             \
            action;                                                                                \
            printf("%s: nothing\n", what);                                                         \
        } else {                                                                                   \
            says(what, signal);                                                                    \
        }                                                                                          \
    } while (0)

int main(void) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    sigaction(SIGUSR1, &action, 0);
    pthread_t other;
    void *wrong;
    pthread_create(&other, 0, work, (void *)1);
    long sum = (long)work(0);
    pthread_join(other, &wrong);
    printf("wrong %ld\n", sum + (long)wrong);

    action.sa_sigaction = fault;
    sigaction(SIGSEGV, &action, 0);
    pages = mmap(0, 3 * AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(pages, 0, 3 * AREA);
    mprotect(pages + AREA, AREA, PROT_READ);
    munmap(pages + 2 * AREA, AREA);
    STORE("xsave", pages, 3);
    FAULTS("aligned by 32", STORE("xsave", pages + 32, 3));
    FAULTS("fxsave aligned by 8", STORE("fxsave", pages + 8, 3));
    FAULTS("read only", STORE("xsave", pages + AREA, 3));
    FAULTS("read only, compacted", STORE("xsavec", pages + AREA, 3));
    FAULTS("load of read only", LOAD(pages + AREA, 3));
    FAULTS("nothing there", LOAD(pages + 2 * AREA, 3));
    FAULTS("not canonical", LOAD((unsigned char *)(1L << 62), 3));
    pages[513] = 0x80;
    FAULTS("unknown component", LOAD(pages, 3));
    pages[513] = 0;
    pages[520] = 1;
    FAULTS("layout without its bit", LOAD(pages, 3));
    pages[520] = 0;
    pages[27] = 0x80;
    FAULTS("reserved bit of mxcsr", LOAD(pages, 3));
    FAULTS("the same, x87 only", LOAD(pages, 1));
    pages[27] = 0;
    FAULTS("good", LOAD(pages, 7));
    FAULTS("unknown state of the processor", __asm__ volatile("xgetbv" : : "c"(7) : "eax", "edx"));
    FAULTS("a counter", __asm__ volatile("rdpmc" : : "c"(0) : "eax", "edx"));
    return 0;
}
