// SILENT
// Exceptions across threads, static initialisation, shared_ptr, futures,
// thread_local, call_once: all ordered.
#include <atomic>
#include <cstdio>
#include <future>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>
struct Table { int v[64]; Table() { for (int i = 0; i < 64; i++) v[i] = i; } };
static Table &table() { static Table t; return t; }
static thread_local int mine;
static std::once_flag once; static int set_once;
int main() {
    std::vector<std::thread> all; std::atomic<long> sum{0}; auto shared = std::make_shared<std::string>("hello");
    for (int t = 0; t < 4; t++) all.emplace_back([&, t, s = shared] {
        for (int i = 0; i < 2000; i++) { mine += table().v[i % 64]; auto copy = s; sum += copy->size(); std::call_once(once, [] { set_once = 7; }); sum += set_once; }
    });
    shared.reset();
    for (auto &t : all) t.join();
    for (int i = 0; i < 50; i++) {
        auto f = std::async(std::launch::async, [i]() -> std::vector<int> { if (i % 5 == 0) throw std::runtime_error("no " + std::to_string(i)); return std::vector<int>(i, 1); });
        try { sum += f.get().size(); } catch (const std::exception &e) { sum += e.what()[0]; }
    }
    std::promise<std::string> p; auto f = p.get_future();
    std::thread q([&] { p.set_value("done"); }); std::printf("%s %d\n", f.get().c_str(), sum > 0); q.join();
}
