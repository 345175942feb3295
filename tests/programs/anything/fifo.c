// Opening a FIFO waits for the other side; the other threads go on.
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
static volatile long turns;
static volatile int stop;
static void *spin(void *argument) {
    while (!stop) {
        turns++;
        usleep(1000);
    }
    return argument;
}
static void *writer(void *argument) {
    usleep(50000);
    int fd = open("fifo", O_WRONLY);
    if (write(fd, "through the fifo", 17) != 17)
        return NULL;
    close(fd);
    return argument;
}
int main(void) {
    char text[64];
    if (mkfifo("fifo", 0600))
        return 1;
    pthread_t threads[2];
    pthread_create(&threads[0], NULL, spin, NULL);
    pthread_create(&threads[1], NULL, writer, &stop);
    int fd = open("fifo", O_RDONLY);
    ssize_t n = read(fd, text, sizeof text);
    int went_on = turns > 5;
    stop = 1;
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    printf("%zd %s, others went on: %d\n", n, text, went_on);
    return 0;
}
