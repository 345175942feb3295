// A hazard pointer keeps a node alive while a reader uses it.
#include <atomic>
#include <cstdio>
#include <thread>
struct Node {
    int value;
};
static std::atomic<Node *> head{new Node{0}};
static std::atomic<Node *> hazard{nullptr};
int main() {
    std::thread reader([] {
        int sum = 0;
        for (int i = 0; i < 50; i++) {
            Node *node;
            do {
                node = head.load();
                hazard.store(node);
            } while (node != head.load());
            sum += node->value;
            hazard.store(nullptr);
        }
        std::printf("%d\n", sum >= 0);
    });
    for (int i = 1; i < 50; i++) {
        Node *fresh = new Node{i};
        Node *old = head.exchange(fresh);
        while (hazard.load() == old)
            std::this_thread::yield();
        delete old;
    }
    reader.join();
    delete head.load();
}
