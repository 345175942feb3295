// Each function is one atomic operation; the comment is what debug info must
// tell about it.
#include <atomic>
#include <cstdio>

std::atomic<int> number;
std::atomic<bool> flag;
std::atomic<int *> pointer;
std::atomic_flag bit = ATOMIC_FLAG_INIT;
int plain;

#define ONE extern "C" __attribute__((noinline))

ONE int load_relaxed() { return number.load(std::memory_order_relaxed); } // load Relaxed
ONE int load_acquire() { return number.load(std::memory_order_acquire); } // load Acquire
ONE int load_default() { return number.load(); } // load SeqCst
ONE int load_converted() { return number; } // load SeqCst
ONE bool load_bool() { return flag.load(std::memory_order_acquire); } // load Acquire
ONE int *load_pointer() { return pointer.load(std::memory_order_consume); } // load Acquire
ONE void store_relaxed() { number.store(1, std::memory_order_relaxed); } // store Relaxed
ONE void store_release() { number.store(2, std::memory_order_release); } // store Release
ONE void store_assigned() { number = 3; } // store SeqCst
ONE void store_bool() { flag.store(true, std::memory_order_release); } // store Release
ONE int add_relaxed() { return number.fetch_add(1, std::memory_order_relaxed); } // rmw Relaxed
ONE int add_acq_rel() { return number.fetch_add(1, std::memory_order_acq_rel); } // rmw AcqRel
ONE int increment() { return ++number; } // rmw SeqCst
ONE bool exchange_bool() { return flag.exchange(true, std::memory_order_acquire); } // rmw Acquire
ONE bool swap_number() { // rmw AcqRel
    int expected = 1;
    return number.compare_exchange_strong(expected, 2, std::memory_order_acq_rel,
                                          std::memory_order_relaxed);
}
ONE bool set_bit() { return bit.test_and_set(std::memory_order_acquire); } // rmw Acquire
ONE int load_free() { return std::atomic_load_explicit(&number, std::memory_order_acquire); } // load Acquire
ONE int read_plain() { return plain; } // none
ONE void write_plain() { plain = 5; } // none

int main() {
    plain = load_relaxed() + load_acquire() + load_default() + load_converted() + load_bool();
    plain += load_pointer() != nullptr;
    store_relaxed();
    store_release();
    store_assigned();
    store_bool();
    plain += add_relaxed() + add_acq_rel() + increment() + exchange_bool() + swap_number();
    plain += set_bit() + load_free() + read_plain();
    write_plain();
    std::printf("%d\n", plain);
}
