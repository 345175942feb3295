// ABORT at asserts.c:7
#include <assert.h>
#include <stdlib.h>

static void check(const char *text)
{
    assert(atoi(text) == 7);
}

int main(int count, char **words)
{
    check(count > 1 ? words[1] : "0");
    return 0;
}
