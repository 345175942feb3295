// operator new and delete are followed: an element of an array that another
// thread may have deleted.
#include <pthread.h>
#include <cstdio>

struct Item {
    long a, b;
    ~Item() { a = -1; }            
};

static Item *items;

static void *reader(void *) {
    long b = items[2].b;            // RACE items: spec-violated memory-error use-after-free
    return reinterpret_cast<void *>(b);
}

int main() {
    pthread_t thread;
    items = new Item[4]();
    pthread_create(&thread, nullptr, reader, nullptr);
    delete[] items;                 // RACE items: spec-violated memory-error use-after-free
    pthread_join(thread, nullptr);
    puts("done");
    return 0;
}
