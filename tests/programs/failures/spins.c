// HANG at wait_for: nobody sets the flag
#include <pthread.h>
#include <stdatomic.h>

static atomic_int ready;

static void *wait_for(void *unused)
{
    (void)unused;
    int rounds = 0;
    while (!ready)
        rounds ^= 1;
    return NULL;
}

int main(void)
{
    pthread_t one, other;
    pthread_create(&one, NULL, wait_for, NULL);
    pthread_create(&other, NULL, wait_for, NULL);
    pthread_join(one, NULL);
    pthread_join(other, NULL);
    return 0;
}
