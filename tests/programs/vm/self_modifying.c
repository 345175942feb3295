// Code that writes to its own page, changes itself, and is replaced.
// identity: output as natively
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

typedef int function(void);

int main(void) {
    unsigned char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE | PROT_EXEC,
                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    // add dword [rip + 0x100 - 10], 3 (imm8: 7 bytes); mov eax, [rip + ...]; ret
    unsigned char counts[] = {0x83, 0x05, 0xf9, 0x00, 0, 0, 3, 0x8b, 0x05, 0xf3, 0x00, 0, 0, 0xc3};
    memcpy(page, counts, sizeof counts);
    int sum = 0;
    for (int i = 0; i < 1000; i++)
        sum += ((function *)page)();
    printf("counted in its own page: %d\n", sum);
    // inc byte [rip + 1] (the immediate of the next instruction); mov eax, imm32; ret
    unsigned char changes[] = {0xfe, 0x05, 0x01, 0, 0, 0, 0xb8, 1, 0, 0, 0, 0xc3};
    memcpy(page, changes, sizeof changes);
    sum = 0;
    for (int i = 0; i < 200; i++)
        sum += ((function *)page)();
    printf("changed itself: %d\n", sum);
    sum = 0;
    for (int i = 0; i < 100; i++) {
        // mov eax, i; ret, now here, now across the page border
        unsigned char *at = page + (i % 2 ? 4093 : 64);
        unsigned char again[] = {0xb8, (unsigned char)i, 0, 0, 0, 0xc3};
        memcpy(at, again, sizeof again);
        sum += ((function *)at)();
    }
    printf("replaced: %d\n", sum);
    return 0;
}
