// C++ with virtual calls, a shared cache that is not locked, and a result that
// is (the shape of bodytrack and raytrace).
#include <cstdio>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>
struct Light { virtual double at(int x) const = 0; virtual void warm() = 0; virtual ~Light() = default; };
struct Lamp : Light { double power = 1; int used = 0; double at(int x) const override { return power / (x + 1) + used * 1e-9; } void warm() override { used++; power += 1e-6; } };
struct Cache {
    int key[64] = {}; double value[64] = {}; long asked = 0;
    [[gnu::noinline]] bool find(int k, double &v) { asked++; if (key[k % 64] != k) return false; v = value[k % 64]; return true; }
    [[gnu::noinline]] void keep(int k, double v) { key[k % 64] = k; value[k % 64] = v; }
};
static Cache cache;
static std::mutex lock;
static double total;
int main() {
    std::vector<std::unique_ptr<Light>> lights;
    for (int i = 0; i < 8; i++) lights.push_back(std::make_unique<Lamp>());
    auto work = [&](int from) {
        double sum = 0;
        for (int i = 0; i < 1500000; i++) {
            int x = (i * 7 + from) % 300 + 1; double v;
            if (!cache.find(x, v)) { v = 0; for (auto &l : lights) v += l->at(x); cache.keep(x, v); }
            if (i % 4 == 0) lights[i / 4 % 8]->warm();
            sum += v;
        }
        std::lock_guard<std::mutex> hold(lock); total += sum;
    };
    std::thread other(work, 3); work(0); other.join();
    std::printf("%d\n", total > 0);
}
