// RACE ?
// A block is freed while another thread still reads it.
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
static int *volatile block;
static void *reader(void *p) { volatile int sum = 0; for (int i = 0; i < 64; i++) sum += block[i]; usleep(300000); return p; }
int main(void) {
    pthread_t t;
    block = calloc(64, sizeof *block);
    pthread_create(&t, 0, reader, 0);
    usleep(100000);
    free((void *)block);
    pthread_join(t, 0);
    return 0;
}
