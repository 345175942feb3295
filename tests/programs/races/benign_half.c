// An access that is only in part where races are meant.
#include "two.h"
#include <stdint.h>
static volatile char bytes[64] __attribute__((aligned(32)));
__attribute__((noinline)) void AnnotateBenignRaceSized(const char *file, int line, const volatile void *address, long size, const char *why) {
    __asm__ volatile("" : : "r"(file), "r"(line), "r"(address), "r"(size), "r"(why) : "memory");
}
static void *halves(void *arg) {
    *(volatile uint64_t *)bytes = 1; // RACE half
    *(volatile uint64_t *)(bytes + 16) = 1;
    return arg;
}
int main(void) {
    AnnotateBenignRaceSized(__FILE__, __LINE__, bytes + 4, 4, "its upper half");
    AnnotateBenignRaceSized(__FILE__, __LINE__, bytes + 16, 8, "all of it");
    run(halves, halves);
    return 0;
}
