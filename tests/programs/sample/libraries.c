// Libraries that are loaded and unloaded all the time, at the same addresses
// more often than not.
// EXPECT: silent
// OPTIONS: --rate 500
// CFLAGS: -ldl
// ARGS: 4
#include "threads.h"
#include <dlfcn.h>

int main(int argc, char **argv) {
  set_end(argc, argv);
  const char *names[] = {"libm.so.6", "libstdc++.so.6", "libgcc_s.so.1"};
  double sum = 0;
  for (int i = 0; running(); i++) {
    void *library = dlopen(names[i % 3], RTLD_NOW | RTLD_LOCAL);
    if (!library)
      continue;
    double (*cosine)(double) = (double (*)(double))dlsym(library, "cos");
    for (int j = 0; cosine && j < 1000; j++)
      sum += cosine(j);
    dlclose(library);
  }
  puts(sum == sum ? "ok" : "wrong");
  return 0;
}
