// Settings that are made at first use and looked for without the lock: the
// pointer is there before what it points to is.
// HUNT fails: exit 1
#include "work.h"
#include <mutex>
#include <string>
#include <thread>

struct Settings {
    std::string name;
    int limit = 0;
};

static std::mutex lock;
static Settings *volatile settings;
static int refused;

static Settings *get() {
    if (settings)  // DECIDES
        return settings;
    std::lock_guard<std::mutex> guard(lock);
    if (!settings) {
        settings = new Settings;     // DECIDES
        settings->name = "default";
        settings->limit = 8;         // DECIDES
    }
    return settings;
}

static void serve() {
    work(200);
    if (get()->limit < 1)  // DECIDES
        refused = 1;
}

int main() {
    std::thread one(serve), other(serve);
    one.join();
    other.join();
    return refused;
}
