#include <cstdio>
#include <string>
#include <thread>
static std::string text = "short";
int main() {
    std::thread other([] {
        text += "er"; // RACE text
        text += "!"; // RACE text
        // A last call would leave no frame of this program on the stack.
        asm volatile("");
    });
    std::printf("%zu\n", text.size() / 100); // RACE text
    other.join();
}
