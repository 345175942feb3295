// RACE text
// memcmp may look at all bytes, wherever the first difference is.
#include <pthread.h>
#include <string.h>
#include <unistd.h>
char text[64];
static int seen;
static void *compare(void *p) {
    size_t n = 16;
    __asm__("" : "+r"(n));
    seen = memcmp(text, "abcdefghijklmnop", n);
    usleep(300000);
    return p;
}
int main(void) {
    pthread_t t;
    pthread_create(&t, 0, compare, 0);
    usleep(100000);
    text[9] = 'b';
    text[16] = 'c';
    pthread_join(t, 0);
    return seen == 0;
}
