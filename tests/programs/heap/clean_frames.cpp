// CLEAN
// Stack memory filled to its last byte, exceptions and jumps out of such
// frames, deep recursion, arrays of other threads' stacks, threads that end.
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <pthread.h>
#include <stdexcept>

int tick;

static int fill(char *bytes, size_t size) {
    memset(bytes, 'x', size);
    return bytes[size - 1];
}

static int thrown(int depth) {
    char line[40];
    fill(line, sizeof line);
    if (depth == 0)
        throw std::runtime_error("enough");
    return thrown(depth - 1) + line[3];
}

static void jumped(jmp_buf back, int depth) {
    long words[6];
    for (int index = 0; index < 6; index++)
        words[index] = depth;
    if (depth == 0)
        longjmp(back, (int)words[5] + 1);
    jumped(back, depth - 1);
}

static int deeper(int depth) {
    int numbers[9];
    for (int index = 0; index < 9; index++)
        numbers[index] = depth + index;
    return depth ? deeper(depth - 1) + numbers[8] : numbers[0];
}

static void *lent(void *array) {
    fill(static_cast<char *>(array), 100);
    return nullptr;
}

static void *work(void *number) {
    tick = (int)(long)number;       // RACE tick: any
    char array[100];
    pthread_t thread;
    pthread_create(&thread, nullptr, lent, array);
    pthread_join(thread, nullptr);
    for (int round = 0; round < 1; round++) {
        try {
            thrown(round + 2);
        } catch (const std::exception &error) {
            strcpy(array, error.what());
        }
        jmp_buf back;
        if (setjmp(back) == 0)
            jumped(back, 4);
        if (deeper(5) < 0)
            abort();
    }
    return nullptr;
}

int main() {
    pthread_t one, two;
    pthread_create(&one, nullptr, work, (void *)1);
    pthread_create(&two, nullptr, work, (void *)2);
    pthread_join(one, nullptr);
    pthread_join(two, nullptr);
    printf("%d\n", tick);
}
