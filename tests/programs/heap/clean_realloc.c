// CLEAN
// Blocks that grow, shrink, move and are aligned; strings at their very ends.
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int tick;

static void *work(void *number) {
    tick = (int)(long)number;       // RACE tick: any
    char *text = 0;
    for (int length = 1; length < 400; length += 13) {
        text = realloc(text, length + 1);
        if (length > 13 && (text[0] != 'a' || text[length - 14] != 'a'))
            abort();
        memset(text, 'a', length);
        text[length] = 0;
        if ((int)strlen(text) != length || strchr(text, 'b') || strcmp(text, text))
            abort();
    }
    text = realloc(text, 5);
    strcpy(text, "four");
    char *copy = strdup(text);
    free(text);
    for (int power = 4; power < 12; power++) {
        void *block = 0;
        if (posix_memalign(&block, (size_t)1 << power, 100))
            abort();
        memset(block, power, 100);
        char *other = memalign((size_t)1 << power, 33);
        memcpy(other, block, 33);
        char *third = aligned_alloc(64, 128);
        memset(third, 1, malloc_usable_size(third));
        free(block);
        free(third);
        free(other);
    }
    int *zeroes = calloc(77, sizeof *zeroes);
    for (int index = 0; index < 77; index++)
        if (zeroes[index])
            abort();
    zeroes = reallocarray(zeroes, 200, sizeof *zeroes);
    if (zeroes[0] || zeroes[76])
        abort();
    zeroes[199] = 1;
    free(zeroes);
    char *large = malloc(1 << 20);
    large[(1 << 20) - 1] = 1;
    large = realloc(large, 3 << 20);
    large[(3 << 20) - 1] = 1;
    free(large);
    free(copy);
    free(0);
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
