// CLEAN
// LEVELS 0 1 2
// Accesses that begin in one array as far as code tells and are about its
// neighbour; pointers that walk; arrays that are longer than their type.
#include <pthread.h>
#include <stdio.h>
#include <string.h>

int before[4] = {1, 2, 3, 4};
int table[64];
int behind[64];
int matrix[8][8];
struct {
    int count;
    int items[];
} list = {4, {1, 2, 3, 4}};
int tick, first = 1;

static int sum(const int *from, const int *to) {
    int total = 0;
    while (from < to)
        total += *from++;
    return total;
}

static void shift(void) {
    for (int i = first; i < 64; i++)
        table[i - 1] = behind[i] + table[i];
    for (int i = 63; i >= first; i--)
        behind[i] = table[i - 1] + before[i & 3];
    for (int i = first; i < 4; i++)
        before[i] += table[i - 1] + list.items[i];
}

static int local(int times) {
    int one[16], other[16];
    char text[32];
    memset(one, 0, sizeof one);
    for (int i = 0; i < 16; i++)
        other[15 - i] = i * times;
    for (int i = 1; i <= 16; i++)
        one[i - 1] += other[16 - i];
    int *chosen = times & 1 ? one : other;
    for (int i = 0; i < 16; i++)
        chosen[i] += one[i] - other[15 - i];
    for (int *at = one + 16; at-- > one;)
        *at += times;
    snprintf(text, sizeof text, "%d", times);
    for (char *at = text; *at; at++)
        text[at - text] ^= 1;
    return sum(one, one + 16) + sum(other, other + 16) + text[0];
}

void *worker(void *unused) {
    int seen = tick;                // RACE tick: any
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 8; j++)
            matrix[j][i] = matrix[i][7 - j] + seen;
    for (int round = 0; round < 20; round++) {
        shift();
        seen += local(round);
    }
    return seen == 0x7fffffff ? &tick : 0;
}

void *other(void *unused) {
    tick = 1;                       // RACE tick: any
    return 0;
}

int main(void) {
    pthread_t one, two;
    pthread_create(&one, 0, worker, 0);
    pthread_create(&two, 0, other, 0);
    pthread_join(one, 0);
    pthread_join(two, 0);
    puts("done");
    return 0;
}
