// Variables of every shape; the test asks for bytes of them.
#include <stdatomic.h>
#include <stdio.h>

struct stats {
    int hits;
    long total;
    struct {
        short low;
        short high;
    };
    union {
        int number;
        float real;
    } value;
    volatile int ready;
    _Atomic int users;
    unsigned first : 3;
    unsigned second : 9;
};

struct node {
    struct node *next;
    int keys[4];
};

typedef struct stats stats_t;

stats_t stats;
struct node table[8];
int matrix[3][5];
static volatile int flag;
_Atomic long counter;
const char *words[] = {"one", "two"};
char bytes[100] = {1};

int count(void) {
    static int calls;
    return ++calls;
}

__attribute__((noinline)) int locals(int parameter) {
    struct node here = {0, {1, 2, 3, parameter}};
    int numbers[10];
    for (int i = 0; i < 10; i++)
        numbers[i] = i * parameter;
    {
        int inner = numbers[3];
        __asm__ volatile("int3" : : "r"(&inner), "r"(numbers), "r"(&here), "r"(&parameter) : "memory");
    }
    return numbers[here.keys[1]] + parameter;
}

int main(void) {
    flag = count() + matrix[1][2] + bytes[3];
    counter++;
    printf("%d %ld %d %s\n", flag, stats.total, table[1].keys[0], words[1]);
    return locals(7);
}
