/* Reads a line, then two threads walk over tables of their own for long enough
 * that a recording has checkpoints. What replays of damaged recordings are
 * tried with. */
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

enum { TABLE = 1 << 16, ROUNDS = 30000000 };

static unsigned char input[64] = "nothing yet";
static unsigned char tables[2][TABLE];

static void *walk(void *argument) {
    unsigned char *table = argument;
    unsigned long at = 1;
    for (long round = 0; round < ROUNDS; round++) {
        at = at * 6364136223846793005ul + 1442695040888963407ul;
        table[at >> 48] += (unsigned char)round;
    }
    return 0;
}

int main(void) {
    pthread_t threads[2];
    ssize_t length = read(0, input, sizeof input - 1);
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], 0, walk, tables[i]);
    unsigned long sum = 0;
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], 0);
        for (int j = 0; j < TABLE; j++)
            sum += tables[i][j];
    }
    for (ssize_t i = 0; i < length; i++)
        sum += input[i];
    printf("%lu\n", sum);
    return 0;
}
