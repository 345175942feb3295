// SILENT
// The same, under a lock, and with a string of each thread's own.
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <unistd.h>
std::string text = "short";
std::mutex lock;
static void work() {
    std::string mine;
    for (int i = 0; i < 2000; i++) {
        std::lock_guard<std::mutex> held(lock);
        text += "er";
        mine.push_back('x');
        mine.insert(0, text, 0, 2);
        try {
            text.insert(text.size() + 1, "never");
        } catch (const std::out_of_range &) {
            text.assign("short");
        }
    }
}
int main() {
    std::thread one(work), two(work);
    one.join();
    two.join();
    return text.size() > 100;
}
