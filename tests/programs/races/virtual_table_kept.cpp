// A destructor writes the table of its class, which is there already, while
// another thread calls a virtual function and is waited for inside.
#include <cstdio>
#include <pthread.h>
#include <semaphore.h>
#include <thread>
struct Base {
    sem_t done;
    Base() { sem_init(&done, 0, 0); }
    virtual void finish() { sem_post(&done); }
    virtual ~Base() {
        sem_wait(&done);
        sem_destroy(&done);
    }
};
int main() {
    Base *object = new Base;
    std::thread thread([object] { object->finish(); });
    object->~Base();
    thread.join();
    ::operator delete(object);
    std::puts("done");
}
