// Registers of 512 bits, their upper halves and masks live through a signal whose handler uses them,
// and the frame has them where CPUID says.
// identity: output as natively
#define _GNU_SOURCE
#include <cpuid.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

static _Atomic int wrong, handled;

__attribute__((target("avx512f,avx512bw"))) static void clobber(void) {
    __asm__ volatile("vpxord %%zmm1, %%zmm1, %%zmm1\n"
                     "vpxord %%zmm17, %%zmm17, %%zmm17\n"
                     "kxorq %%k3, %%k3, %%k3\n" ::
                         : "xmm1", "xmm17", "k3");
}

static uint64_t word(const unsigned char *area, int component, int at) {
    unsigned a, offset, c, d;
    __cpuid_count(0xd, component, a, offset, c, d);
    uint64_t value;
    memcpy(&value, area + offset + at, 8);
    return value;
}

static void handler(int signal, siginfo_t *info, void *context) {
    const unsigned char *area = (void *)((ucontext_t *)context)->uc_mcontext.fpregs;
    (void)info;
    handled += signal == SIGUSR1;
    // Upper half of zmm1, zmm17, k3.
    if (word(area, 6, 32 + 24) != 0x1111 || word(area, 7, 64 + 56) != 0x2222 ||
        word(area, 5, 24) != 0x3333)
        wrong++;
    clobber();
}

__attribute__((target("avx512f,avx512bw"))) static void *work(void *arg) {
    for (int i = 0; i < 100; i++) {
        uint64_t low[8], high[8], mask = 0, one = 0x1111, two = 0x2222, three = 0x3333;
        long process = getpid(), thread = syscall(SYS_gettid), result = SYS_tgkill;
        register long signal __asm__("rdx") = SIGUSR1;
        __asm__ volatile("vpbroadcastq %[one], %%zmm1\n"
                         "vpbroadcastq %[two], %%zmm17\n"
                         "kmovq %[three], %%k3\n"
                         "syscall\n"
                         "vmovdqu64 %%zmm1, %[low]\n"
                         "vmovdqu64 %%zmm17, %[high]\n"
                         "kmovq %%k3, %[mask]\n"
                         : [low] "=m"(low), [high] "=m"(high), [mask] "=m"(mask), "+a"(result)
                         : [one] "r"(one), [two] "r"(two), [three] "r"(three), "D"(process),
                           "S"(thread), "r"(signal)
                         : "xmm1", "xmm17", "k3", "rcx", "r11", "memory");
        for (int k = 0; k < 8; k++)
            wrong += low[k] != one || high[k] != two;
        wrong += mask != three;
    }
    return arg;
}

int main(void) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    sigaction(SIGUSR1, &action, 0);
    if (__builtin_cpu_supports("avx512bw")) {
        pthread_t other;
        pthread_create(&other, 0, work, 0);
        work(0);
        pthread_join(other, 0);
        wrong += handled != 200;
    }
    puts(wrong ? "wrong" : "right");
    return 0;
}
