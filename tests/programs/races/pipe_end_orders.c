#include "two.h"
#include <sys/socket.h>
// Who sees the end of what another wrote comes after its close, or shutdown.
static int first, second;
static int ends[2], pair[2];
static void *closes(void *x) {
    first = 1;
    close(ends[1]);
    second = 2;
    shutdown(pair[1], SHUT_WR);
    return x;
}
static void *reads(void *x) {
    char byte;
    if (read(ends[0], &byte, 1) != 0)
        abort();
    printf("%d\n", first);
    if (recv(pair[0], &byte, 1, 0) != 0)
        abort();
    printf("%d\n", second);
    return x;
}
int main(void) {
    if (pipe(ends) || socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
        return 1;
    run(closes, reads);
}
