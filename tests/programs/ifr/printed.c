// RACE text
// What sprintf and snprintf print is written; what does not fit is not.
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
char text[64];
char rest[64];
static void *printer(void *p) {
    int many = 12345678;
    __asm__("" : "+r"(many));
    sprintf(text, "%d", many);
    snprintf(rest, 8, "%d%d", many, many);
    usleep(300000);
    return p;
}
int main(void) {
    pthread_t t;
    pthread_create(&t, 0, printer, 0);
    usleep(100000);
    char seen = text[8];
    rest[8] = 1;
    rest[40] = 1;
    pthread_join(t, 0);
    return seen;
}
