// ALLOCATOR alloc=pool_get:2,free=pool_put:2
// A pool of the program's own inside one large block: what was put back is
// used by who has read the pointer before.
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

struct pool {
    char memory[4096];
    size_t next;
    int used;
};

struct pool *pool;
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void *pool_get(struct pool *pool, size_t size) {
    pthread_mutex_lock(&lock);
    void *block = pool->memory + pool->next;
    pool->next += (size + 15) / 16 * 16;
    pool->used++;
    pthread_mutex_unlock(&lock);
    return block;
}

void pool_put(struct pool *pool, void *block) {
    pthread_mutex_lock(&lock);
    pool->used--;
    pthread_mutex_unlock(&lock);
}

long *item;

void *reader(void *unused) {
    long *mine = item;              // RACE item: spec-violated memory-error use-after-free
    for (int times = 0; times < 50; times++)
        sched_yield();
    return mine ? (void *)*mine : 0;
}

int main(void) {
    pthread_t thread;
    pool = calloc(1, sizeof *pool);
    long *mine = pool_get(pool, sizeof *mine);
    *mine = 0;
    item = mine;
    pthread_create(&thread, 0, reader, 0);
    item = 0;                       // RACE item: spec-violated memory-error use-after-free
    pool_put(pool, mine);
    pthread_join(thread, 0);
    puts("done");
    return 0;
}
