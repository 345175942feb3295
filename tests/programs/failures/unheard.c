// HANG at listen: the only signal came before anybody waited for it
#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t heard = PTHREAD_COND_INITIALIZER;

static void *listen(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&lock);
    pthread_cond_wait(&heard, &lock);
    pthread_mutex_unlock(&lock);
    return NULL;
}

int main(void)
{
    pthread_t listener;
    pthread_mutex_lock(&lock);
    pthread_cond_signal(&heard);
    pthread_mutex_unlock(&lock);
    pthread_create(&listener, NULL, listen, NULL);
    pthread_join(listener, NULL);
    return 0;
}
