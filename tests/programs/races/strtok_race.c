#include "two.h"
static char shared[] = "a b c d e f g";
static void *cut(void *x) {
    for (char *word = strchr(shared, ' '); word; word = strchr(word + 1, ' ')) // RACE shared
        *word = '_'; // RACE shared
    return x;
}
int main(void) {
    run(cut, cut);
    puts(shared);
}
