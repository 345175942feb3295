// HANG at main: it sleeps and looks, and nobody sets the flag
#include <stdatomic.h>
#include <unistd.h>

static atomic_int ready;

int main(void)
{
    while (!ready)
        usleep(100000);
    return 0;
}
