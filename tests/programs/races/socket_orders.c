#include "two.h"
#include <arpa/inet.h>
#include <sys/socket.h>
// What goes through a socket of this machine carries order.
static int value;
static struct sockaddr_in address;
static void *client(void *x) {
    int end = socket(AF_INET, SOCK_STREAM, 0);
    value = 5;
    if (connect(end, (struct sockaddr *)&address, sizeof address))
        abort();
    if (write(end, "x", 1) != 1)
        abort();
    close(end);
    return x;
}
int main(void) {
    int server = socket(AF_INET, SOCK_STREAM, 0);
    socklen_t size = sizeof address;
    pthread_t thread;
    char byte;
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(server, (struct sockaddr *)&address, sizeof address) || listen(server, 1) ||
        getsockname(server, (struct sockaddr *)&address, &size))
        return 1;
    pthread_create(&thread, 0, client, 0);
    int end = accept(server, 0, 0);
    if (read(end, &byte, 1) != 1)
        return 1;
    printf("%d\n", value);
    pthread_join(thread, 0);
}
