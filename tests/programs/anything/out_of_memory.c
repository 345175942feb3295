// Memory that is not to be had: mmap, malloc and brk say so, and the program
// goes on; RLIMIT_AS is honoured.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
int main(void) {
    void *huge = mmap(NULL, 1ul << 46, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    printf("%d\n", huge == MAP_FAILED && errno == ENOMEM);
    printf("%d\n", malloc(1ul << 60) == NULL);
    struct rlimit limit = {256ul << 20, 256ul << 20};
    setrlimit(RLIMIT_AS, &limit);
    int got = 0;
    while (got < 1000 && malloc(1 << 20))
        got++;
    printf("%d %d\n", got > 10, got < 260);
    return 0;
}
