// CLEAN
// ALLOCATOR alloc=pool_get:2,free=pool_put:2
// A pool inside a block, blocks that are handed out again, and one that
// threads give to one another under a lock.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct free_item {
    struct free_item *next;
};

struct pool {
    char memory[8192];
    size_t next;
    struct free_item *free;
};

static struct pool *pool;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
int tick;

void *pool_get(struct pool *pool, size_t size) {
    pthread_mutex_lock(&lock);
    void *block = pool->free;
    if (block)
        pool->free = pool->free->next;
    else {
        block = pool->memory + pool->next;
        pool->next += 64;
    }
    pthread_mutex_unlock(&lock);
    memset(block, 0, size);
    return block;
}

void pool_put(struct pool *pool, void *block) {
    pthread_mutex_lock(&lock);
    struct free_item *item = block;
    item->next = pool->free;
    pool->free = item;
    pthread_mutex_unlock(&lock);
}

static void *work(void *number) {
    tick = (int)(long)number;       // RACE tick: any
    for (int round = 0; round < 20; round++) {
        char *block = pool_get(pool, 50);
        strcpy(block, "hello from a pool");
        if (strlen(block) != 17)
            abort();
        pool_put(pool, block);
        char *own = malloc(round);
        memset(own, 1, round);
        free(own);
    }
    return 0;
}

int main(void) {
    pthread_t one, two;
    pool = calloc(1, sizeof *pool);
    pthread_create(&one, 0, work, (void *)1);
    pthread_create(&two, 0, work, (void *)2);
    pthread_join(one, 0);
    pthread_join(two, 0);
    printf("%d\n", tick);
    free(pool);
    return 0;
}
