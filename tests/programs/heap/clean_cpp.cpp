// CLEAN
// new[] and delete[], aligned new, containers, exceptions that are thrown
// across allocations.
#include <cstdio>
#include <map>
#include <memory>
#include <new>
#include <pthread.h>
#include <stdexcept>
#include <string>
#include <vector>

int tick;

struct alignas(64) Wide {
    char bytes[64];
};

static void thrower(int depth) {
    std::vector<int> held(depth + 1, depth);
    std::unique_ptr<std::string> text(new std::string(40, 'x'));
    if (depth == 5)
        throw std::runtime_error(*text);
    thrower(depth + 1);
}

static void *work(void *number) {
    tick = static_cast<int>(reinterpret_cast<long>(number)); // RACE tick: any
    for (int round = 0; round < 5; round++) {
        try {
            thrower(0);
        } catch (const std::runtime_error &error) {
            if (std::string(error.what()).size() != 40)
                std::abort();
        }
    }
    std::string *strings = new std::string[7];
    for (int index = 0; index < 7; index++)
        strings[index] = std::string(index * 9, 'y');
    delete[] strings;
    Wide *wide = new Wide;
    wide->bytes[63] = 1;
    delete wide;
    int *plain = new (std::nothrow) int[3];
    plain[2] = 1;
    delete[] plain;
    std::map<int, std::string> map;
    for (int index = 0; index < 30; index++)
        map[index % 11] += "grows and grows";
    map.erase(3);
    std::shared_ptr<Wide> shared = std::make_shared<Wide>();
    std::weak_ptr<Wide> weak = shared;
    shared.reset();
    return weak.lock() ? number : nullptr;
}

int main() {
    pthread_t one, two;
    pthread_create(&one, nullptr, work, reinterpret_cast<void *>(1));
    pthread_create(&two, nullptr, work, reinterpret_cast<void *>(2));
    pthread_join(one, nullptr);
    pthread_join(two, nullptr);
    printf("%d\n", tick);
    return 0;
}
