// What is done before a file is written happens before what is done after it is
// read, by streams.
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>
#include <unistd.h>
int value;
int main() {
    std::string name = "/tmp/deadheat-stream-" + std::to_string(getpid());
    std::thread writer([&] {
        value = 7;
        std::ofstream(name) << "done\n";
    });
    std::string word;
    while (word != "done") {
        std::this_thread::yield();
        std::ifstream(name) >> word;
    }
    printf("%d\n", value);
    writer.join();
    unlink(name.c_str());
}
