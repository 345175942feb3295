#include <cstdio>
#include <thread>
#include <unistd.h>
struct Box {
    volatile int value = 1;
    ~Box() { value = 0; } // RACE box
};
static Box *shared;
int main() {
    shared = new Box;
    std::thread user([] {
        for (int i = 0; i < 50; i++)
            shared->value = i; // RACE box
    });
    usleep(10);
    shared->~Box();
    user.join();
    std::puts("done");
}
