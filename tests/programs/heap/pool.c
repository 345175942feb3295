// ALLOCATOR alloc=pool_get:2,free=pool_put:2
// A pool of the program's own inside one large block.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

struct pool {
    char memory[4096];
    size_t next;
};

struct pool *pool;
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void *pool_get(struct pool *pool, size_t size) {
    pthread_mutex_lock(&lock);
    void *block = pool->memory + pool->next;
    pool->next += (size + 15) / 16 * 16;
    pthread_mutex_unlock(&lock);
    return block;
}

void pool_put(struct pool *pool, void *block) {
    pthread_mutex_lock(&lock);
    *(void **)block = 0;            // RACE item: spec-violated memory-error use-after-free
    pthread_mutex_unlock(&lock);
}

long *item;

void *reader(void *unused) {
    long value = *item;             // RACE item: spec-violated memory-error use-after-free
    return (void *)value;
}

int main(void) {
    pthread_t thread;
    pool = calloc(1, sizeof *pool);
    item = pool_get(pool, sizeof *item);
    *item = 0;
    pthread_create(&thread, 0, reader, 0);
    pool_put(pool, item);
    pthread_join(thread, 0);
    puts("done");
    return 0;
}
