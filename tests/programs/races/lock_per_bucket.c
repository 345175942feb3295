#include "two.h"
static struct {
    pthread_mutex_t lock;
    int count;
} buckets[4];
static void *work(void *x) {
    for (int i = 0; i < 80; i++) {
        pthread_mutex_lock(&buckets[i % 4].lock);
        buckets[i % 4].count++;
        pthread_mutex_unlock(&buckets[i % 4].lock);
    }
    return x;
}
int main(void) {
    for (int i = 0; i < 4; i++)
        pthread_mutex_init(&buckets[i].lock, 0);
    run(work, work);
    printf("%d\n", buckets[2].count);
}
