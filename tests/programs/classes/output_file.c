// The last writer decides what goes into a file.
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

int winner;

void *run(void *number) {
    winner = (int)(long)number;            // RACE winner: output-differs output
    return 0;
}

int main(void) {
    pthread_t one, two;
    pthread_create(&one, 0, run, (void *)1);
    pthread_create(&two, 0, run, (void *)2);
    pthread_join(one, 0);
    pthread_join(two, 0);
    int fd = open("/tmp/deadheat-classes-winner", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    char text[16];
    int length = snprintf(text, sizeof text, "winner %d\n", winner);
    write(fd, text, length);
    close(fd);
    unlink("/tmp/deadheat-classes-nothing");
    return 0;
}
