// Orders that cannot deadlock: tried for, behind a gate, only read, by one
// thread.
#include <pthread.h>
#include <stdio.h>
static pthread_mutex_t a = PTHREAD_MUTEX_INITIALIZER, b = PTHREAD_MUTEX_INITIALIZER, c = PTHREAD_MUTEX_INITIALIZER,
                       d = PTHREAD_MUTEX_INITIALIZER, gate = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t r = PTHREAD_RWLOCK_INITIALIZER, s = PTHREAD_RWLOCK_INITIALIZER;
static void both(pthread_mutex_t *first, pthread_mutex_t *second) {
    pthread_mutex_lock(first);
    pthread_mutex_lock(second);
    pthread_mutex_unlock(second);
    pthread_mutex_unlock(first);
}
static void *one(void *unused) {
    pthread_mutex_lock(&c);
    pthread_mutex_lock(&d);
    pthread_mutex_unlock(&d);
    pthread_mutex_unlock(&c);
    pthread_rwlock_rdlock(&r);
    pthread_rwlock_rdlock(&s);
    pthread_rwlock_unlock(&s);
    pthread_rwlock_unlock(&r);
    return unused;
}
static void *two(void *unused) {
    pthread_mutex_lock(&d);
    if (pthread_mutex_trylock(&c) == 0)
        pthread_mutex_unlock(&c);
    pthread_mutex_unlock(&d);
    pthread_rwlock_rdlock(&s);
    pthread_rwlock_rdlock(&r);
    pthread_rwlock_unlock(&r);
    pthread_rwlock_unlock(&s);
    return unused;
}
static void *three(void *argument) {
    pthread_mutex_lock(&gate);
    if (argument)
        both(&b, &c);
    else
        both(&c, &b);
    pthread_mutex_unlock(&gate);
    return 0;
}
int main(void) {
    pthread_t threads[4];
    both(&a, &b);
    pthread_create(&threads[0], 0, one, 0);
    pthread_create(&threads[1], 0, two, 0);
    pthread_create(&threads[2], 0, three, 0);
    pthread_create(&threads[3], 0, three, &a);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], 0);
    both(&b, &a);
    puts("done");
}
