// The waiter looks at the flag before it takes the lock; the signal comes
// between the two and wakes nobody.
// HUNT fails: hang
#include "work.h"
#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int done;

static void *waiter(void *unused) {
    (void)unused;
    work(100);
    if (!done) {  // DECIDES
        pthread_mutex_lock(&lock);
        pthread_cond_wait(&changed, &lock);  // DECIDES
        pthread_mutex_unlock(&lock);
    }
    return 0;
}

static void *finisher(void *unused) {
    (void)unused;
    work(300);
    done = 1;  // DECIDES
    pthread_mutex_lock(&lock);
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
    return 0;
}

int main(void) {
    pthread_t threads[2];
    pthread_create(&threads[0], 0, waiter, 0);
    pthread_create(&threads[1], 0, finisher, 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], 0);
    return 0;
}
