// CLEAN
// alloca, setjmp and longjmp, contexts of their own, callbacks of the C
// library, thread-local memory.
#include <alloca.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

int tick;
static __thread char scratch[200];
static __thread ucontext_t home, away;

static void inner(jmp_buf back, int depth) {
    char *local = alloca(depth * 8 + 1);
    memset(local, depth, depth * 8 + 1);
    if (depth == 12)
        longjmp(back, local[3]);
    inner(back, depth + 1);
}

static int compare(const void *one, const void *other) {
    return *(const int *)one - *(const int *)other;
}

static void elsewhere(void) {
    char *block = malloc(30);
    strcpy(block, "on another stack");
    memcpy(scratch, block, 17);
    free(block);
}

static void *work(void *number) {
    tick = (int)(long)number;       // RACE tick: any
    jmp_buf back;
    char *held = malloc(24);
    if (setjmp(back) == 0)
        inner(back, 1);
    held[23] = 1;
    free(held);
    int numbers[50];
    for (int index = 0; index < 50; index++)
        numbers[index] = (index * 37) % 50;
    qsort(numbers, 50, sizeof *numbers, compare);
    if (numbers[49] != 49)
        abort();
    char *stack = malloc(65536);
    getcontext(&away);
    away.uc_stack.ss_sp = stack;
    away.uc_stack.ss_size = 65536;
    away.uc_link = &home;
    makecontext(&away, elsewhere, 0);
    swapcontext(&home, &away);
    free(stack);
    char line[64];
    snprintf(line, sizeof line, "%s %d", scratch, numbers[3]);
    FILE *memory = fmemopen(line, strlen(line), "r");
    char word[20];
    if (fscanf(memory, "%19s", word) != 1)
        abort();
    fclose(memory);
    return 0;
}

int main(void) {
    pthread_t one, two;
    pthread_create(&one, 0, work, (void *)1);
    pthread_create(&two, 0, work, (void *)2);
    pthread_join(one, 0);
    pthread_join(two, 0);
    printf("%d\n", tick);
    return 0;
}
