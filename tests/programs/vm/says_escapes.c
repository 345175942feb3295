/* A program whose every name tries to steer a terminal: its thread's, and its
 * source file's in the debug info. Its counter is racy. */
#include <pthread.h>
#include <stdio.h>
#include <sys/prctl.h>

#line 1 "evil\033[2Jfile\u202e\r.c"
static int counter;

static void *add(void *argument) {
    prctl(PR_SET_NAME, "\033[31mred\n\033]0;x", 0, 0, 0);
    for (int i = 0; i < 100; i++)
        counter++;
    return argument;
}

int main(int argc, char **argv) {
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], 0, add, 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], 0);
    if (argc == 2)
        printf("%d\n", counter);
    if (argc > 2)
        fputs("out\033[1mput\xe2\x80\xae\xff\n", stdout);
    return argc == 1 || !argv[1];
}
