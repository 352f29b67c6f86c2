/* Traffic of the benchmarks: one role per process, each pinned to a processor and in a network namespace.
 *
 *   send CPU REALTIME RATE BATCH SIZE COUNT (NETNS MAC)...   sends frames from the eth0 of each namespace in turn to its MAC
 *   catch CPU NETNS                               receives the frames: latency of each, up to the kernel's receive timestamp
 *   sink CPU NETNS                                receives a TCP stream: bytes and seconds
 *   source CPU NETNS ADDRESS PORT SECONDS         sends a TCP stream
 *   pong CPU NETNS POLL                           answers every 8 bytes of TCP with 8 bytes
 *   ping CPU NETNS POLL ADDRESS PORT COUNT        measures round trips
 *   timers CPU INTERVAL COUNT                     measures how late a timerfd in an epoll set wakes its process
 *
 * CPU -1: not pinned. RATE: frames/s of all namespaces together, 0: unlimited. A sender that falls behind shifts its schedule
 * instead of catching up, so that only BATCH makes bursts. "timers", and "send" if REALTIME is 1, run with real-time priority,
 * as the relay does. SIZE: bytes of the IP packet. POLL: nanoseconds to poll before sleeping, -1: forever. SECONDS: a decimal
 * number. INTERVAL: nanoseconds. A role to which others connect prints "ready" and its port first. "catch" leaves the frames in
 * its socket until its standard input is closed, so that it uses no processor time during the measurement. The result is a
 * line of JSON. Its times are in nanoseconds, except seconds and cpu, which are in seconds, and rtt, which is in microseconds.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/tcp.h>
#include <net/if.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define DEVICE "eth0"
#define MAGIC 0x6265636e68656c6bULL /* distinguishes the benchmark's frames from the kernel's */
#define MAX_BATCH 256
#define SLIP 1000000 /* ns: a sender that is further behind shifts its schedule */
#define TIMEOUT 10  /* s: maximum wait for a connection */

struct __attribute__((packed)) frame {
    uint8_t destination[6], source[6];
    uint16_t type;
    uint8_t version, service;
    uint16_t length, id, fragment;
    uint8_t ttl, protocol;
    uint16_t checksum;
    uint32_t from, to;
    uint16_t source_port, destination_port, udp_length, udp_checksum;
    uint64_t magic, number, sent;
    uint8_t padding[65536];
};

static void die(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static int64_t clock_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int64_t now(void) { return clock_ns(CLOCK_MONOTONIC); }
static int64_t cpu(void) { return clock_ns(CLOCK_PROCESS_CPUTIME_ID); }

static void pin(const char *text) {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (atoi(text) < 0) return;
    CPU_SET(atoi(text), &set);
    if (sched_setaffinity(0, sizeof set, &set)) die("pinning to a processor");
}

/* Run with real-time priority, as the relay does, if that is permitted. */
static void set_realtime(void) {
    struct sched_param lowest = {.sched_priority = 1};
    sched_setscheduler(0, SCHED_FIFO, &lowest);
}

static void enter(const char *path) {
    int space = open(path, O_RDONLY | O_CLOEXEC);
    if (space < 0 || setns(space, CLONE_NEWNET)) die(path);
    close(space);
}

static int ascending(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Sorts the samples, and prints "min": ..., "max": ... of them. */
static void print_quantiles(int64_t *samples, long count) {
    static const struct {
        const char *name;
        double share;
    } wanted[] = {{"min", 0}, {"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"p99.9", 0.999}, {"max", 1}};
    qsort(samples, count, sizeof *samples, ascending);
    for (unsigned i = 0; i < sizeof wanted / sizeof *wanted; i++)
        printf("%s\"%s\": %lld", i ? ", " : "", wanted[i].name,
               (long long)(count ? samples[(long)((count - 1) * wanted[i].share + 0.5)] : 0));
}

static void force_buffer(int s, int option, int bytes) {
    if (setsockopt(s, SOL_SOCKET, option, &bytes, sizeof bytes)) die("setting a buffer");
}

/* Opens a packet socket on eth0 of this namespace; with protocol 0 it receives nothing. */
static int packet_socket(int protocol) {
    int s = socket(AF_PACKET, SOCK_RAW, 0);
    struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_protocol = htons(protocol)};
    address.sll_ifindex = if_nametoindex(DEVICE);
    if (s < 0 || !address.sll_ifindex) die("a packet socket on " DEVICE);
    if (bind(s, (void *)&address, sizeof address)) die("bind");
    return s;
}

static uint16_t internet_checksum(const void *from, int words) {
    const uint16_t *word = from;
    uint32_t sum = 0;
    while (words--) sum += *word++;
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    return ~sum;
}

static void read_mac(int s, uint8_t *mac) {
    struct ifreq request = {.ifr_name = DEVICE};
    if (ioctl(s, SIOCGIFHWADDR, &request)) die("reading a MAC");
    memcpy(mac, request.ifr_hwaddr.sa_data, 6);
}

/* Makes a UDP packet whose IP header has a wrong checksum. A node that receives it drops it before the route look-up, so that
 * the relay's cost of sending does not include the node's processing of the packet. */
static void fill(struct frame *frame, const char *mac, int size) {
    memset(frame, 0, sizeof *frame);
    uint8_t *m = frame->destination;
    if (sscanf(mac, "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", m, m + 1, m + 2, m + 3, m + 4, m + 5) != 6) die(mac);
    frame->type = htons(ETH_P_IP);
    frame->version = 0x45;
    frame->length = htons(size);
    frame->ttl = 64;
    frame->protocol = 17;
    inet_pton(AF_INET, "198.51.100.1", &frame->from);
    inet_pton(AF_INET, "198.51.100.2", &frame->to);
    frame->checksum = ~internet_checksum(&frame->version, 10);
    frame->source_port = htons(40000);
    frame->destination_port = htons(40001);
    frame->udp_length = htons(size - 20);
    frame->magic = MAGIC;
}

static int do_send(char **a, int n) {
    pin(a[0]);
    double rate = atof(a[2]);
    int batch = atoi(a[3]), size = atoi(a[4]), spaces = (n - 6) / 2;
    long count = atol(a[5]);
    int min_size = sizeof(struct frame) - sizeof((struct frame *)0)->padding - ETH_HLEN;
    if (batch < 1 || batch > MAX_BATCH || size < min_size || size > 60000) {
        fprintf(stderr, "send: BATCH must be 1 to %d, got %d; SIZE must be %d to 60000 bytes, got %d\n", MAX_BATCH, batch,
                min_size, size);
        return 1;
    }
    int *sockets = calloc(spaces, sizeof *sockets);
    uint8_t (*macs)[12] = calloc(spaces, sizeof *macs); /* destination and source */
    static struct frame frames[MAX_BATCH];
    static struct iovec vectors[MAX_BATCH];
    static struct mmsghdr messages[MAX_BATCH];
    for (int i = 0; i < spaces; i++) {
        enter(a[6 + 2 * i]);
        sockets[i] = packet_socket(0);
        force_buffer(sockets[i], SO_SNDBUFFORCE, 16 << 20);
        fill(&frames[0], a[7 + 2 * i], size);
        memcpy(macs[i], frames[0].destination, 6);
        read_mac(sockets[i], macs[i] + 6);
    }
    for (int i = 0; i < batch; i++) {
        fill(&frames[i], a[7], size);
        memcpy(frames[i].destination, macs[0], 12);
        vectors[i] = (struct iovec){&frames[i], size + ETH_HLEN};
        messages[i].msg_hdr = (struct msghdr){.msg_iov = &vectors[i], .msg_iovlen = 1};
    }
    if (atoi(a[1])) set_realtime();
    long sent = 0, refused = 0, slipped = 0;
    double step = rate ? batch * 1e9 / rate : 0, due = now();
    int64_t start = due, used = cpu();
    for (int turn = 0; sent < count; turn = turn + 1 == spaces ? 0 : turn + 1) {
        if (rate) {
            int64_t t;
            while ((t = now()) < due) {}
            if (t - due > SLIP) {
                slipped++;
                due = t;
            }
            due += step;
        }
        uint64_t stamp = clock_ns(CLOCK_REALTIME);
        for (int i = 0; i < batch; i++) {
            if (spaces > 1) memcpy(frames[i].destination, macs[turn], 12);
            frames[i].number = sent + i;
            frames[i].sent = stamp;
        }
        for (int done = 0; done < batch;) {
            int taken = sendmmsg(sockets[turn], messages + done, batch - done, 0);
            if (taken > 0)
                done += taken;
            else if (errno == ENOBUFS)
                refused++, done++;
            else
                die("sendmmsg");
        }
        sent += batch;
    }
    printf("{\"sent\": %ld, \"refused\": %ld, \"slipped\": %ld, \"seconds\": %.9f, \"cpu\": %.9f}\n", sent - refused,
           refused, slipped, (now() - start) / 1e9, (cpu() - used) / 1e9);
    return 0;
}

static int do_catch(char **a, int n) {
    (void)n;
    pin(a[0]);
    enter(a[1]);
    int s = packet_socket(ETH_P_IP), on = 1;
    force_buffer(s, SO_RCVBUFFORCE, 1 << 29);
    setsockopt(s, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on);
    puts("ready 0");
    fflush(stdout);
    while (getchar() != EOF) {}
    long count = 0, room = 1 << 16, disorder = 0;
    int64_t *samples = malloc(room * sizeof *samples);
    uint64_t last = 0;
    static struct frame frame;
    char control[128];
    struct iovec vector = {&frame, sizeof frame};
    for (;;) {
        struct msghdr message = {
            .msg_iov = &vector, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
        if (recvmsg(s, &message, MSG_DONTWAIT) < 0) break;
        if (frame.magic != MAGIC) continue;
        struct timespec stamp = {0};
        for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c))
            if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SO_TIMESTAMPNS)
                memcpy(&stamp, CMSG_DATA(c), sizeof stamp);
        if (count == room) samples = realloc(samples, (room *= 2) * sizeof *samples);
        samples[count++] = stamp.tv_sec * 1000000000LL + stamp.tv_nsec - (int64_t)frame.sent;
        disorder += frame.number < last;
        last = frame.number;
    }
    if (errno != EAGAIN) die("recvmsg");
    struct tpacket_stats lost = {0};
    socklen_t length = sizeof lost;
    getsockopt(s, SOL_PACKET, PACKET_STATISTICS, &lost, &length);
    printf("{\"received\": %ld, \"overrun\": %u, \"disorder\": %ld, ", count, lost.tp_drops, disorder);
    print_quantiles(samples, count);
    puts("}");
    return 0;
}

/* Opens a TCP socket with the kernel's default congestion control, whatever this machine's default is. */
static int tcp_socket(void) {
    int s = socket(AF_INET, SOCK_STREAM, 0);
    if (s < 0 || setsockopt(s, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5)) die("a TCP socket");
    return s;
}

/* Listens on a port, which is printed, and returns the accepted connection. */
static int accept_connection(void) {
    int s = tcp_socket();
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof address;
    if (bind(s, (void *)&address, sizeof address) || listen(s, 1)) die("listen");
    getsockname(s, (void *)&address, &length);
    printf("ready %d\n", ntohs(address.sin_port));
    fflush(stdout);
    struct timeval timeout = {.tv_sec = TIMEOUT};
    setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    int peer = accept(s, NULL, NULL);
    if (peer < 0) die("accept");
    return peer;
}

static int connect_to(const char *host, const char *port) {
    int s = tcp_socket();
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
    if (inet_pton(AF_INET, host, &address.sin_addr) != 1) die(host);
    if (connect(s, (void *)&address, sizeof address)) die("connect");
    return s;
}

static char buffer[1 << 20];

static int do_sink(char **a, int n) {
    (void)n;
    pin(a[0]);
    enter(a[1]);
    int s = accept_connection();
    int64_t start = now(), used = cpu();
    long long total = 0;
    ssize_t received;
    while ((received = recv(s, buffer, sizeof buffer, 0)) > 0) total += received;
    if (received < 0) die("recv");
    printf("{\"bytes\": %lld, \"seconds\": %.9f, \"cpu\": %.9f}\n", total, (now() - start) / 1e9, (cpu() - used) / 1e9);
    return 0;
}

static int do_source(char **a, int n) {
    (void)n;
    pin(a[0]);
    enter(a[1]);
    int s = connect_to(a[2], a[3]);
    int64_t start = now(), used = cpu(), end = start + (int64_t)(atof(a[4]) * 1e9);
    while (now() < end)
        if (send(s, buffer, 1 << 17, MSG_NOSIGNAL) < 0) die("send");
    struct tcp_info info;
    socklen_t length = sizeof info;
    getsockopt(s, IPPROTO_TCP, TCP_INFO, &info, &length);
    shutdown(s, SHUT_WR);
    if (recv(s, buffer, 1, 0) < 0) die("recv");
    printf("{\"retransmitted\": %u, \"rtt\": %u, \"cpu\": %.9f}\n", info.tcpi_total_retrans, info.tcpi_rtt,
           (cpu() - used) / 1e9);
    return 0;
}

/* Receives 8 bytes; returns 0 if the peer has closed the connection. */
static int receive8(int s, int64_t poll_time) {
    char bytes[8];
    int64_t deadline = poll_time > 0 ? now() + poll_time : 0;
    for (int count = 0; count < 8;) {
        if (poll_time > 0 && now() >= deadline) poll_time = 0;
        ssize_t received = recv(s, bytes + count, 8 - count, poll_time ? MSG_DONTWAIT : 0);
        if (received > 0)
            count += received;
        else if (received == 0)
            return 0;
        else if (errno != EAGAIN)
            die("recv");
    }
    return 1;
}

static void disable_nagle(int s) {
    int on = 1;
    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static int do_pong(char **a, int n) {
    (void)n;
    pin(a[0]);
    enter(a[1]);
    int64_t poll_time = atoll(a[2]);
    int s = accept_connection();
    disable_nagle(s);
    while (receive8(s, poll_time))
        if (send(s, buffer, 8, MSG_NOSIGNAL) != 8) die("send");
    puts("{}");
    return 0;
}

static int do_ping(char **a, int n) {
    (void)n;
    pin(a[0]);
    enter(a[1]);
    int64_t poll_time = atoll(a[2]);
    int s = connect_to(a[3], a[4]);
    long count = atol(a[5]), warm_up = count / 10 + 10;
    int64_t *samples = malloc(count * sizeof *samples), used = 0;
    disable_nagle(s);
    for (long i = -warm_up; i < count; i++) {
        if (!i) used = cpu();
        int64_t start = now();
        if (send(s, buffer, 8, MSG_NOSIGNAL) != 8 || !receive8(s, poll_time)) die("a round trip");
        if (i >= 0) samples[i] = now() - start;
    }
    printf("{\"cpu\": %.9f, ", (cpu() - used) / 1e9);
    print_quantiles(samples, count);
    puts("}");
    return 0;
}

static int do_timers(char **a, int n) {
    (void)n;
    pin(a[0]);
    int64_t interval = atoll(a[1]);
    long count = atol(a[2]);
    int64_t *samples = malloc(count * sizeof *samples);
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK), set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    if (timer < 0 || set < 0 || epoll_ctl(set, EPOLL_CTL_ADD, timer, &event)) die("a timer");
    set_realtime();
    for (long i = 0; i < count; i++) {
        int64_t due = now() + interval;
        struct itimerspec when = {.it_value = {due / 1000000000, due % 1000000000}};
        uint64_t expired;
        timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL);
        if (epoll_wait(set, &event, 1, -1) != 1) die("epoll_wait");
        samples[i] = now() - due;
        if (read(timer, &expired, sizeof expired) < 0) die("read");
    }
    putchar('{');
    print_quantiles(samples, count);
    puts("}");
    return 0;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        int (*act)(char **, int);
        int min_arguments;
    } roles[] = {{"send", do_send, 8}, {"catch", do_catch, 2}, {"sink", do_sink, 2},     {"source", do_source, 5},
                 {"pong", do_pong, 3}, {"ping", do_ping, 6},   {"timers", do_timers, 3}};
    for (unsigned i = 0; argc > 1 && i < sizeof roles / sizeof *roles; i++)
        if (!strcmp(argv[1], roles[i].name) && argc - 2 >= roles[i].min_arguments) return roles[i].act(argv + 2, argc - 2);
    fprintf(stderr, "unknown role, or too few arguments: see the comment at the top of traffic.c\n");
    return 1;
}
