#include "two.h"
char text[64] = "hello";
static void *reader(void *arg) {
    long sum = 0;
    for (int i = 0; i < 50; i++)
        sum += strlen(text); // RACE text
    return (void *)sum;
}
static void *writer(void *arg) {
    for (int i = 0; i < 50; i++)
        text[2] = 'a' + i % 26; // RACE text
    return arg;
}
int main(void) {
    run(reader, writer);
    puts("done");
    return 0;
}
