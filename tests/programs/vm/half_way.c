// One thread fills 16 MB with a single string instruction, the other looks
// whether it can be seen half way.
#include <pthread.h>
#include <stdio.h>

#define SIZE (16L << 20)

static volatile unsigned char memory[SIZE];

static void *fill(void *argument) {
    volatile unsigned char *target = memory;
    long count = SIZE;
    __asm__ volatile("cld; rep stosb" : "+D"(target), "+c"(count) : "a"(1) : "memory", "cc");
    return argument;
}

int main(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, fill, NULL);
    while (!memory[0]) {}
    int half_way = memory[SIZE - 1] == 0;
    pthread_join(thread, NULL);
    printf("%s, %d at the end\n", half_way ? "half way" : "whole", memory[SIZE - 1]);
    return 0;
}
