// Memory shared with children: a process-shared mutex, a counter, a ring.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
struct shared {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    long counter;
    int ready;
    char text[64];
};
int main(void) {
    struct shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_mutexattr_t m;
    pthread_mutexattr_init(&m);
    pthread_mutexattr_setpshared(&m, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&s->lock, &m);
    pthread_condattr_t c;
    pthread_condattr_init(&c);
    pthread_condattr_setpshared(&c, PTHREAD_PROCESS_SHARED);
    pthread_cond_init(&s->changed, &c);
    for (int i = 0; i < 3; i++)
        if (fork() == 0) {
            for (int k = 0; k < 500; k++) {
                pthread_mutex_lock(&s->lock);
                s->counter++;
                pthread_mutex_unlock(&s->lock);
            }
            pthread_mutex_lock(&s->lock);
            s->ready++;
            snprintf(s->text, sizeof s->text, "%d ready", s->ready);
            pthread_cond_broadcast(&s->changed);
            pthread_mutex_unlock(&s->lock);
            _exit(0);
        }
    pthread_mutex_lock(&s->lock);
    while (s->ready < 3)
        pthread_cond_wait(&s->changed, &s->lock);
    printf("%ld %s\n", s->counter, s->text);
    pthread_mutex_unlock(&s->lock);
    while (wait(NULL) > 0)
        ;
    return 0;
}
