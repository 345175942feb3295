// Stores that no plain register leads to, into addresses where a program has
// nothing and the vm may have: through a stack pointer that was set in every
// way there is, through the bases of FS and GS, under masks, scattered, of
// single bits. Each must be a fault, and what stores nothing must not. Loads
// from there that fault must do so as natively.
#define _GNU_SOURCE
#include <immintrin.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <ucontext.h>
static sigjmp_buf back;
static siginfo_t info;
static long trap, error;
static uint64_t fs, gs;
static int has_bases, has_avx, has_avx512;
__attribute__((optimize("no-stack-protector"))) static void handler(int signal, siginfo_t *said, void *context) {
    // Thread-local storage is where it was before anything uses it.
    if (has_bases) {
        __asm__ volatile("wrfsbase %0" ::"r"(fs));
        __asm__ volatile("wrgsbase %0" ::"r"(gs));
    }
    (void)signal;
    info = *said;
    trap = ((ucontext_t *)context)->uc_mcontext.gregs[REG_TRAPNO];
    error = ((ucontext_t *)context)->uc_mcontext.gregs[REG_ERR];
    siglongjmp(back, 1);
}
// In each: the stack pointer goes to %0 or thereabouts, something is stored
// there, and it comes back from r15.
#define WITH_STACK(code)                                                                                 \
    __asm__ volatile("mov %%rsp, %%r15\n" code "\n mov %%r15, %%rsp" ::"r"(at)                           \
                     : "r15", "r14", "r13", "rax", "rbx", "memory", "cc")
#define STACK(name, code)                                                                                \
    static void name(uint64_t at) {                                                                      \
        WITH_STACK(code);                                                                                \
    }
STACK(push, "mov %0, %%rsp\n push %%rax")
STACK(pushed_flags, "mov %0, %%rsp\n pushf")
STACK(pushed_constant, "mov %0, %%rsp\n push $7")
STACK(called, "mov %0, %%rsp\n call 1f\n1:")
STACK(called_register, "lea 1f(%%rip), %%rax\n mov %0, %%rsp\n call *%%rax\n1:")
STACK(entered, "mov %%rbp, %%r14\n mov %0, %%rsp\n enter $16, $0\n mov %%r14, %%rbp")
STACK(moved, "mov %0, %%rsp\n movq $1, (%%rsp)")
STACK(below, "mov %0, %%rsp\n movq $1, -8(%%rsp)")
STACK(far, "mov %0, %%r14\n sub $0x40000000, %%r14\n mov %%r14, %%rsp\n movq $1, 0x40000000(%%rsp)")
STACK(exchanged, "mov %0, %%r14\n xchg %%r14, %%rsp\n push %%rax")
STACK(exchanged_back, "mov %0, %%r14\n xchg %%rsp, %%r14\n push %%rax")
STACK(popped, "push %0\n pop %%rsp\n push %%rax")
STACK(from_memory, "push %0\n mov (%%rsp), %%rsp\n push %%rax")
STACK(formed, "lea 16(%0), %%rsp\n push %%rax")
STACK(formed_of_two, "mov %%rsp, %%r14\n mov %0, %%r13\n sub %%r14, %%r13\n lea (%%r14,%%r13), %%rsp\n push %%rax")
STACK(added, "mov %0, %%r14\n sub %%rsp, %%r14\n add %%r14, %%rsp\n push %%rax")
STACK(subtracted, "mov %%rsp, %%r14\n sub %0, %%r14\n sub %%r14, %%rsp\n push %%rax")
STACK(conditional, "mov %0, %%r14\n test %%rsp, %%rsp\n cmovnz %%r14, %%rsp\n push %%rax")
STACK(left, "mov %%rbp, %%r14\n mov %0, %%rbp\n leave\n mov %%r14, %%rbp\n push %%rax")
STACK(returned, "mov %0, %%rsp\n sub $8, %%rsp\n push %%rax\n ret $32")
STACK(indexed, "mov %0, %%r14\n sub %%rsp, %%r14\n movq $1, (%%rsp,%%r14)")
STACK(in_pieces, "mov %0, %%rsp\n sub $4096, %%rsp\n jmp 1f\n1: sub $4096, %%rsp\n push %%rax")
// By small steps over the room between guest and vm, touching nothing.
static void crept(uint64_t at) {
    uint64_t near = at - (64 << 20);
    __asm__ volatile("mov %%rsp, %%r15\n mov %0, %%rsp\n1: add $4096, %%rsp\n dec %1\n jnz 1b\n push %%rax\n mov %%r15, %%rsp"
                     : "+r"(near)
                     : "r"((uint64_t)(64 << 20) / 4096)
                     : "r15", "rax", "memory", "cc");
}
static void in_fs(uint64_t at) {
    __asm__ volatile("movq $1, %%fs:(%0)" ::"r"(at - fs) : "memory");
}
static void in_fs_far(uint64_t at) {
    if (!has_bases)
        return in_fs(at);
    __asm__ volatile("wrfsbase %0\n movq $1, %%fs:0x40000000\n wrfsbase %1" ::"r"(at - 0x40000000), "r"(fs) : "memory");
}
static void fs_there(uint64_t at) {
    if (!has_bases)
        return in_fs(at);
    __asm__ volatile("wrfsbase %0\n movq $1, %%fs:0\n wrfsbase %1" ::"r"(at), "r"(fs) : "memory");
}
static void in_gs(uint64_t at) {
    __asm__ volatile("movq $1, %%gs:(%0)" ::"r"(at - gs) : "memory");
}
static void gs_there(uint64_t at) {
    if (!has_bases)
        return in_gs(at);
    __asm__ volatile("wrgsbase %0\n movq $1, %%gs:8\n wrgsbase %1" ::"r"(at), "r"(gs) : "memory");
}
static void bytes_masked(uint64_t at) {
    _mm_maskmoveu_si128(_mm_set1_epi8(3), _mm_set1_epi8(-1), (void *)at);
}
__attribute__((target("avx"))) static void masked(uint64_t at) {
    if (!has_avx)
        return bytes_masked(at);
    _mm256_maskstore_ps((void *)at, _mm256_set1_epi32(-1), _mm256_set1_ps(1));
}
__attribute__((target("avx"))) static void masked_all(uint64_t at) {
    if (has_avx)
        _mm256_maskstore_ps((void *)at, _mm256_setzero_si256(), _mm256_set1_ps(1));
}
__attribute__((target("avx512f,avx512bw"))) static void masked512(uint64_t at) {
    if (!has_avx512)
        return masked(at);
    _mm512_mask_storeu_epi8((void *)at, 0xf0, _mm512_set1_epi8(1));
}
__attribute__((target("avx512f,avx512bw"))) static void masked512_all(uint64_t at) {
    if (has_avx512)
        _mm512_mask_storeu_epi8((void *)at, 0, _mm512_set1_epi8(1));
}
__attribute__((target("avx512f,avx512bw"))) static void compressed(uint64_t at) {
    if (!has_avx512)
        return masked(at);
    _mm512_mask_compressstoreu_epi32((void *)at, 0x10, _mm512_set1_epi32(1));
}
__attribute__((target("avx512f"))) static void scattered(uint64_t at) {
    static long own[4];
    if (!has_avx512)
        return masked(at);
    long there = (long)(at - (uint64_t)own);
    __m512i places = _mm512_set_epi64(0, 8, 16, 24, there, 0, 8, 16);
    _mm512_i64scatter_epi64(own, places, _mm512_set1_epi64(1), 1);
}
__attribute__((target("avx512f"))) static void scattered_near(uint64_t at) {
    static long own[4];
    if (has_avx512)
        _mm512_mask_i64scatter_epi64(own, 0xf7, _mm512_set_epi64(0, 8, 16, 24, (long)at, 0, 8, 16), _mm512_set1_epi64(1), 1);
}
static void bit(uint64_t at) {
    static long own;
    __asm__ volatile("btsq %1, %0" : "+m"(own) : "r"((int64_t)((at & ~7ull) - (uint64_t)&own) * 8) : "cc", "memory");
}
static void bit_locked(uint64_t at) {
    static long own;
    __asm__ volatile("lock btcq %1, %0" : "+m"(own) : "r"((int64_t)((at & ~7ull) - (uint64_t)&own) * 8) : "cc", "memory");
}
static void bit_near(uint64_t at) {
    static long own[4];
    (void)at;
    __asm__ volatile("btsq %1, %0" : "+m"(own[0]) : "r"((int64_t)70) : "cc", "memory");
}
static int loads(void) {
    volatile int wrong = 0;
    volatile uint64_t page;
    for (page = 0x600000000000; page < 0x600002000000; page += 4096) {
        if (!sigsetjmp(back, 1)) {
            (void)*(volatile uint64_t *)page;
        } else if (info.si_signo != SIGSEGV || info.si_code != 1 || info.si_addr != (void *)page || trap != 14 || error != 4)
            wrong++;
    }
    return wrong;
}
int main(void) {
    static char stack[1 << 16];
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    sigaltstack(&alternate, 0);
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    sigaction(SIGSEGV, &action, 0);
    sigaction(SIGBUS, &action, 0);
    __builtin_cpu_init();
    has_bases = (getauxval(AT_HWCAP2) & 2) != 0;
    has_avx = __builtin_cpu_supports("avx");
    has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
    __asm__("movq %%fs:0, %0" : "=r"(fs));
    if (has_bases)
        __asm__ volatile("rdgsbase %0" : "=r"(gs));
    static const uint64_t wild[] = {
        0x600000000100, 0x600001000040, 0x600001010008, 0x600001200000, 0x602000001000,
        0x680000000000, 0x540000001000, 0x57fffffff000, 0xdead600000000000,
    };
    static const struct {
        const char *name;
        void (*store)(uint64_t);
    } kinds[] = {
#define KIND(name) {#name, name}
        KIND(push),          KIND(pushed_flags),   KIND(pushed_constant), KIND(called),         KIND(called_register),
        KIND(entered),       KIND(moved),          KIND(below),           KIND(far),            KIND(exchanged),
        KIND(exchanged_back), KIND(popped),        KIND(from_memory),     KIND(formed),         KIND(formed_of_two),
        KIND(added),         KIND(subtracted),     KIND(conditional),     KIND(left),           KIND(returned),
        KIND(indexed),       KIND(in_pieces),      KIND(crept),           KIND(in_fs),          KIND(in_fs_far),
        KIND(fs_there),      KIND(in_gs),          KIND(gs_there),        KIND(bytes_masked),   KIND(masked),
        KIND(masked_all),    KIND(masked512),      KIND(masked512_all),   KIND(compressed),     KIND(scattered),
        KIND(scattered_near), KIND(bit),           KIND(bit_locked),      KIND(bit_near),
    };
    for (unsigned k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        printf("%s:", kinds[k].name);
        // Often enough for the code to be made anew.
        for (int round = 0; round < 3; round++)
            for (unsigned i = 0; i < sizeof wild / sizeof *wild; i++) {
                if (!sigsetjmp(back, 1)) {
                    kinds[k].store(wild[i]);
                    printf(" stored");
                } else
                    printf(" fault");
            }
        printf("\n");
    }
    printf("loads that do not fault as natively: %d\n", loads());
    return 0;
}
