#include <cstdio>
#include <thread>
#include <unistd.h>
// A virtual call while the destructor changes the object's kind.
struct Base {
    virtual void act() {}
    virtual ~Base() { stop(); } // RACE vptr
    void stop() { usleep(1000); }
};
struct Derived : Base { // RACE vptr
    void act() override { usleep(10); }
};
int main() {
    Base *object = new Derived;
    std::thread other([=] {
        for (int i = 0; i < 3; i++)
            object->act(); // RACE vptr
    });
    object->~Base(); // RACE vptr
    other.join();
    std::puts("done");
}
