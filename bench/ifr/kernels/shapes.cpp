// Virtual calls and shared_ptr over a scene, results under a mutex: C++ with
// threads, containers and atomics of the library (the shape of raytrace).
#include <cmath>
#include <cstdio>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>
struct Shape { virtual double hit(double x, double y) const = 0; virtual ~Shape() = default; };
struct Ball : Shape { double x, y, r; Ball(double a, double b, double c) : x(a), y(b), r(c) {} double hit(double a, double b) const override { double d = std::hypot(a - x, b - y); return d < r ? r - d : 0; } };
struct Box : Shape { double x, y, w; Box(double a, double b, double c) : x(a), y(b), w(c) {} double hit(double a, double b) const override { return std::fabs(a - x) < w && std::fabs(b - y) < w ? w : 0; } };
int main() {
    std::vector<std::shared_ptr<Shape>> scene;
    for (int i = 0; i < 60; i++) { if (i & 1) scene.push_back(std::make_shared<Ball>(i * 3 % 100, i * 7 % 100, 5)); else scene.push_back(std::make_shared<Box>(i * 5 % 100, i * 11 % 100, 4)); }
    std::mutex lock; double total = 0;
    auto work = [&](int lo, int hi) {
        for (int y = lo; y < hi; y++) {
            std::vector<double> row(600);
            for (int x = 0; x < 600; x++) for (const auto &s : scene) row[x] += s->hit(x / 6.0, y / 6.0);
            double sum = 0; for (double v : row) sum += v;
            std::lock_guard<std::mutex> hold(lock); total += sum;
        }
    };
    std::thread other(work, 300, 600); work(0, 300); other.join();
    std::printf("%.3f\n", total);
}
