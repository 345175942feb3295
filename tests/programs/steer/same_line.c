// Four workers count on one line, each a tenth of a second after the one
// before, and pass a lock before and behind: a race of the line with itself,
// hidden by the order in which they come.
// CANDIDATE: count count
// UNSTEERED: never
// STEERED: happens
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long jobs, done;

static void take_job(void) {
    pthread_mutex_lock(&lock);
    jobs++;
    pthread_mutex_unlock(&lock);
}

static void *worker(void *number) {
    usleep(100000 * (unsigned)(long)number);
    take_job();
    done++; // RACE count
    take_job();
    return NULL;
}

int main(void) {
    pthread_t threads[4];
    for (long i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, worker, (void *)(i + 1));
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    printf("%ld jobs, %ld done\n", jobs, done);
    return 0;
}
