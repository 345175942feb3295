// shm_open, a named semaphore, and a mapped file written by a child.
#include <fcntl.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
    char name[64];
    snprintf(name, sizeof name, "/deadheat-%d", (int)getpid());
    int fd = shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
    if (fd < 0 || ftruncate(fd, 4096))
        return 1;
    int *s = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    sem_t *turn = sem_open(name, O_CREAT | O_EXCL, 0600, 0), *done = sem_open("/deadheat-done", O_CREAT, 0600, 0);
    shm_unlink(name);
    sem_unlink(name);
    sem_unlink("/deadheat-done");
    int file = open("f", O_CREAT | O_RDWR | O_TRUNC, 0600);
    if (ftruncate(file, 8192))
        return 2;
    char *m = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (fork() == 0) {
        for (int i = 0; i < 10; i++) {
            sem_wait(turn);
            s[1] = s[0] * s[0];
            memset(m + i * 100, 'a' + i, 100);
            sem_post(done);
        }
        _exit(3);
    }
    long sum = 0;
    for (int i = 0; i < 10; i++) {
        s[0] = i;
        sem_post(turn);
        sem_wait(done);
        sum += s[1] + m[i * 100 + 50];
    }
    int status;
    wait(&status);
    printf("%ld %d %.3s\n", sum, WEXITSTATUS(status), m + 499);
    return 0;
}
