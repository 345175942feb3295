// CRASH at null.c:7, in every schedule and natively: no thread, no race
#include <stdio.h>

static void fill(int *p)
{
    puts("before");
    *p = 3;
}

int main(void)
{
    int *volatile nothing = 0;
    fill(nothing);
    return 0;
}
