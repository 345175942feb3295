// Variables of classes: bases, namespaces, atomics, static locals and members.
#include <array>
#include <atomic>
#include <cstdio>
#include <utility>

namespace shop {
struct Base {
    int id;
    int kind;
};
struct Item : Base {
    long price;
    std::atomic<int> stock;
    std::pair<int, long> size;
    static int made;
};
int Item::made;
Item items[4];
static std::array<int, 6> sums;
class atomic {
    int value[2];
};
atomic impostor;
} // namespace shop

std::atomic<bool> done;

int &calls() {
    static int number;
    return number;
}

int main() {
    shop::items[2].price = 3;
    shop::Item::made++;
    calls()++;
    done = true;
    std::printf("%d %zu\n", shop::sums[3], sizeof shop::impostor);
}
