// Socket pairs, and sockets that go through the host's loopback.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define SHOW(e)                                                                \
    do {                                                                       \
        errno = 0;                                                             \
        long result = (long)(e);                                               \
        printf("%s = %ld (%s)\n", #e, result, result < 0 ? strerrorname_np(errno) : "ok"); \
    } while (0)

static int send_fd(int s, int fd) {
    char c[CMSG_SPACE(4)] = {0};
    struct iovec v = {"fd", 2};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = c, .msg_controllen = sizeof c};
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);
    h->cmsg_level = SOL_SOCKET, h->cmsg_type = SCM_RIGHTS, h->cmsg_len = CMSG_LEN(4);
    memcpy(CMSG_DATA(h), &fd, 4);
    return sendmsg(s, &m, 0);
}

static int receive_fd(int s) {
    char c[CMSG_SPACE(4)] = {0}, b[4];
    struct iovec v = {b, 4};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = c, .msg_controllen = sizeof c};
    int n = recvmsg(s, &m, 0), fd = -1;
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);
    if (h) memcpy(&fd, CMSG_DATA(h), 4);
    printf("received %d bytes, control %d, flags %x\n", n, h != NULL, m.msg_flags);
    return fd;
}

static void *echo(void *arg) {
    int s = *(int *)arg;
    char b[1000];
    long n;
    while ((n = read(s, b, sizeof b)) > 0) {
        for (long i = 0; i < n; i++) b[i] ^= 1;
        if (write(s, b, n) != n) break;
    }
    close(s);
    return NULL;
}

static int listener, clients = 4;
static long bytes;

// An epoll server that serves until all clients have gone.
static void *serve(void *arg) {
    int ep = epoll_create1(0), gone = 0;
    epoll_ctl(ep, EPOLL_CTL_ADD, listener, &(struct epoll_event){EPOLLIN, {.fd = listener}});
    while (gone < clients) {
        struct epoll_event e[4];
        int n = epoll_wait(ep, e, 4, -1);
        for (int i = 0; i < n; i++) {
            int fd = e[i].data.fd;
            if (fd == listener) {
                int c = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
                epoll_ctl(ep, EPOLL_CTL_ADD, c, &(struct epoll_event){EPOLLIN | EPOLLET, {.fd = c}});
                continue;
            }
            char b[700];
            long r;
            while ((r = read(fd, b, sizeof b)) > 0) {
                bytes += r;
                send(fd, b, r, 0);
            }
            if (r == 0) close(fd), gone++;
        }
    }
    return arg;
}

static void *client(void *arg) {
    struct sockaddr_in a;
    socklen_t l = sizeof a;
    getsockname(listener, (void *)&a, &l);
    int s = socket(AF_INET, SOCK_STREAM, 0);
    long ok = connect(s, (void *)&a, sizeof a);
    int one = 1;
    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    char b[2000], r[2000];
    for (int round = 0; round < 20; round++) {
        memset(b, 'a' + round, sizeof b);
        ok |= send(s, b, sizeof b, 0) != sizeof b;
        ok |= recv(s, r, sizeof r, MSG_WAITALL) != sizeof r;
        ok |= memcmp(b, r, sizeof r) != 0;
    }
    close(s);
    return (void *)ok;
}

int main(void) {
    signal(SIGPIPE, SIG_IGN);
    int s[2], d[2];
    char b[100] = {0};
    pthread_t t, c[4];
    SHOW(socketpair(AF_UNIX, SOCK_STREAM, 0, s));
    pthread_create(&t, NULL, echo, &s[1]);
    SHOW(send(s[0], "abcdef", 6, 0));
    SHOW(recv(s[0], b, 6, MSG_WAITALL));
    puts(b);
    SHOW(shutdown(s[0], SHUT_WR));
    SHOW(recv(s[0], b, 10, 0));
    pthread_join(t, NULL);
    SHOW(send(s[0], "x", 1, MSG_NOSIGNAL));
    close(s[0]);
    SHOW(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, d));
    SHOW(send(d[0], "first", 5, 0));
    SHOW(send(d[0], "second", 6, 0));
    SHOW(recv(d[1], b, 3, MSG_PEEK | MSG_TRUNC));
    SHOW(recv(d[1], b, 3, 0));
    SHOW(recv(d[1], b, 100, 0));
    SHOW(recv(d[1], b, 100, 0));
    close(d[1]);
    SHOW(send(d[0], "x", 1, 0));
    close(d[0]);
    int type;
    socklen_t l = sizeof type;
    SHOW(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, d));
    SHOW(getsockopt(d[0], SOL_SOCKET, SO_TYPE, &type, &l));
    printf("seqpacket %d\n", type == SOCK_SEQPACKET);
    int p[2];
    pipe(p);
    SHOW(send_fd(d[0], p[1]));
    int passed = receive_fd(d[1]);
    SHOW(write(passed, "through", 7));
    close(p[1]), close(passed);
    memset(b, 0, sizeof b);
    SHOW(read(p[0], b, 50));
    puts(b);
    SHOW(read(p[0], b, 50));
    close(p[0]), close(d[0]), close(d[1]);

    listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    SHOW(bind(listener, (void *)&a, sizeof a));
    SHOW(listen(listener, 10));
    fcntl(listener, F_SETFL, O_NONBLOCK);
    SHOW(accept(listener, NULL, NULL));
    pthread_create(&t, NULL, serve, NULL);
    for (int i = 0; i < clients; i++) pthread_create(&c[i], NULL, client, NULL);
    for (int i = 0; i < clients; i++) {
        void *result;
        pthread_join(c[i], &result);
        printf("client %d: %ld\n", i, (long)result);
    }
    pthread_join(t, NULL);
    printf("server: %ld bytes\n", bytes);
    l = sizeof a;
    SHOW(getsockname(listener, (void *)&a, &l));
    close(listener);
    int s2 = socket(AF_INET, SOCK_STREAM, 0);
    SHOW(connect(s2, (void *)&a, sizeof a));
    close(s2);

    int u = socket(AF_INET, SOCK_DGRAM, 0), w = socket(AF_INET, SOCK_DGRAM, 0);
    a.sin_port = 0;
    bind(u, (void *)&a, sizeof a);
    l = sizeof a;
    getsockname(u, (void *)&a, &l);
    SHOW(sendto(w, "datagram", 8, 0, (void *)&a, sizeof a));
    struct sockaddr_in from;
    l = sizeof from;
    SHOW(recvfrom(u, b, 4, MSG_TRUNC, (void *)&from, &l));
    printf("from loopback %d\n", from.sin_addr.s_addr == htonl(INADDR_LOOPBACK));
    struct timeval tv = {0, 20000};
    SHOW(setsockopt(u, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv));
    SHOW(recv(u, b, 10, 0));
    struct mmsghdr mm[3] = {0};
    struct iovec mv[3];
    for (int i = 0; i < 3; i++) {
        mv[i] = (struct iovec){b + i * 10, 4};
        mm[i].msg_hdr = (struct msghdr){.msg_iov = &mv[i], .msg_iovlen = 1,
                                        .msg_name = &a, .msg_namelen = sizeof a};
    }
    SHOW(sendmmsg(w, mm, 3, 0));
    for (int i = 0; i < 3; i++) mm[i].msg_hdr.msg_name = NULL;
    SHOW(recvmmsg(u, mm, 3, 0, NULL));
    close(u), close(w);

    struct sockaddr_un n = {.sun_family = AF_UNIX};
    snprintf(n.sun_path, sizeof n.sun_path, "/tmp/dh-sock-%d", getpid());
    int ul = socket(AF_UNIX, SOCK_STREAM, 0), uc = socket(AF_UNIX, SOCK_STREAM, 0);
    SHOW(bind(ul, (void *)&n, sizeof n));
    SHOW(listen(ul, 1));
    SHOW(connect(uc, (void *)&n, sizeof n));
    int us = accept(ul, NULL, NULL);
    int f = open("/dev/null", O_RDONLY);
    int file = open("/etc/passwd", O_RDONLY);
    read(file, b, 5);
    SHOW(send_fd(uc, file));
    passed = receive_fd(us);
    printf("position shared %ld\n", (long)lseek(passed, 0, SEEK_CUR));
    SHOW(write(us, "reply", 5));
    struct pollfd pf[2] = {{uc, POLLIN, 0}, {f, POLLIN, 0}};
    SHOW(poll(pf, 1, 1000));
    SHOW(recv(uc, b, 100, 0));
    close(us);
    SHOW(recv(uc, b, 100, 0));
    SHOW(send(uc, "x", 1, MSG_NOSIGNAL));
    unlink(n.sun_path);
    SHOW(recv(f, b, 1, 0));
    return 0;
}
