// RACE text
// memcpy against a plain write: library calls are accesses.
#include <pthread.h>
#include <string.h>
#include <unistd.h>
char text[4096];
static char copy[4096];
static void *reader(void *p) { size_t n = 4096; __asm__("" : "+r"(n)); memcpy(copy, text, n); usleep(300000); return p; }
int main(void) {
    pthread_t t;
    pthread_create(&t, 0, reader, 0);
    usleep(100000);
    text[700] = 1;
    pthread_join(t, 0);
    return copy[0];
}
