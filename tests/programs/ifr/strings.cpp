// RACE text
// Member functions of std::string that the C++ library has compiled.
#include <string>
#include <thread>
#include <unistd.h>
std::string text = "short";
int main() {
    std::thread other([] {
        text += "er";
        usleep(300000);
    });
    usleep(100000);
    bool long_one = text.size() > 100;
    other.join();
    return long_one;
}
