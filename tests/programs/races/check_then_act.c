// MISSED at stripped: a check of a flag looks like an acquire load there.
#include "two.h"
int initialised, config;
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int get(void) {
    if (!initialised) { // RACE initialised
        pthread_mutex_lock(&lock);
        if (!initialised) {
            config = 12; // RACE config
            initialised = 1; // RACE initialised
        }
        pthread_mutex_unlock(&lock);
    }
    return config; // RACE config
}
static void *worker(void *arg) { return (void *)(long)get(); }
int main(void) {
    run(worker, worker);
    puts("done");
    return 0;
}
