/* The machine's limits, as plainly as they can be had: libc's memcpy, one TCP connection both ways, and the sum of two
 * nodes over it. Prints one number, of a connection also its congestion control; each end of one prints its share. No code of
 * the project is in here. */
#define _GNU_SOURCE
#include "gang.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>

#define ROUNDS 5

static int by_size(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, by_size);
    return values[count / 2];
}

/* --- memcpy: every thread copies memory of its own; bytes read and written per second, all threads together. */

#define COPY_BYTES ((size_t)256 << 20)
static pthread_barrier_t barrier;
static double copied[ROUNDS];

static void *copy(void *first) {
    char *from = malloc(COPY_BYTES), *to = malloc(COPY_BYTES);
    if (!from || !to)
        die("find memory to copy");
    madvise(from, COPY_BYTES, MADV_HUGEPAGE);
    madvise(to, COPY_BYTES, MADV_HUGEPAGE);
    memset(from, 1, COPY_BYTES);
    memset(to, 2, COPY_BYTES);
    for (int round = 0; round < ROUNDS; round++) {
        pthread_barrier_wait(&barrier);
        uint64_t begin = now_ns();
        memcpy(to, from, COPY_BYTES);
        __asm__ volatile("" ::"r"(to) : "memory");
        pthread_barrier_wait(&barrier);
        if (first)
            copied[round] = (double)(now_ns() - begin);
    }
    return NULL;
}

static void measure_memcpy(int threads) {
    pthread_t others[64];
    pthread_barrier_init(&barrier, NULL, (unsigned)threads);
    for (int i = 1; i < threads; i++)
        if (pthread_create(&others[i], NULL, copy, NULL))
            die("start a thread");
    copy(&barrier);
    for (int i = 1; i < threads; i++)
        pthread_join(others[i], NULL);
    printf("%.3f\n", 2.0 * (double)COPY_BYTES * threads / median(copied, ROUNDS));
}

/* --- tcp: both ends send and receive at once on one connection; bytes of both directions per second. */

#define WRITE_BYTES ((size_t)1 << 20)
#define SEND_BYTES ((size_t)512 << 20)

static void *send_all(void *socket) {
    static char piece[WRITE_BYTES];
    memset(piece, 3, sizeof piece);
    for (size_t sent = 0; sent < SEND_BYTES;) {
        ssize_t took = send(*(int *)socket, piece, sizeof piece, MSG_NOSIGNAL);
        if (took <= 0)
            die("send");
        sent += (size_t)took;
    }
    return NULL;
}

static void both_ways(int socket) {
    static char piece[WRITE_BYTES];
    pthread_t sender;
    if (pthread_create(&sender, NULL, send_all, &socket))
        die("start a thread");
    /* What was sent is a multiple of a piece or not: the last read may not take the next round's first byte. */
    for (size_t got = 0; got < SEND_BYTES;) {
        size_t most = SEND_BYTES - got < sizeof piece ? SEND_BYTES - got : sizeof piece;
        ssize_t took = recv(socket, piece, most, 0);
        if (took <= 0)
            die("receive");
        got += (size_t)took;
    }
    pthread_join(sender, NULL);
}

static void exchange(int socket) {
    char token = 1;
    if (write(socket, &token, 1) != 1 || read(socket, &token, 1) != 1)
        die("meet the other end");
}

/* --- lean: two nodes add up their floats by as little as it takes. Each sends the half that the other adds, adds what comes
 * to its own, and sends the sums: all bytes cross once each way, and each float is added once. Processor-seconds that this
 * end has used per GB of a node's floats. */

#define FLOATS ((size_t)186 << 18)
#define HALF (FLOATS / 2)

struct sent {
    int socket;
    const char *from;
};

static size_t piece_bytes;

static void *send_half(void *argument) {
    const struct sent *sent = argument;
    for (size_t done = 0; done < HALF * sizeof(float);) {
        size_t most = HALF * sizeof(float) - done;
        ssize_t took = send(sent->socket, sent->from + done, most < piece_bytes ? most : piece_bytes, MSG_NOSIGNAL);
        if (took <= 0)
            die("send");
        done += (size_t)took;
    }
    return NULL;
}

static void receive_exactly(int socket, char *into, size_t bytes) {
    for (size_t got = 0; got < bytes;) {
        ssize_t took = recv(socket, into + got, bytes - got, 0);
        if (took <= 0)
            die("receive");
        got += (size_t)took;
    }
}

__attribute__((optimize("O3"))) static void add(float *restrict sum, const float *restrict one, const float *restrict other,
                                                size_t count) {
    for (size_t i = 0; i < count; i++)
        sum[i] = one[i] + other[i];
}

static float *floats(size_t count) {
    float *memory = NULL;
    if (posix_memalign((void **)&memory, 4096, count * sizeof *memory))
        die("find memory for floats");
    memset(memory, 0, count * sizeof *memory);
    return memory;
}

/* `own`: which half this end adds. */
static void all_reduce(int socket, int own, const float *input, float *sum, float *piece) {
    size_t mine = own ? HALF : 0, theirs = HALF - mine, most = piece_bytes / sizeof(float);
    struct sent sent[2] = {{socket, (const char *)(input + theirs)}, {socket, (const char *)(sum + mine)}};
    pthread_t sender;
    if (pthread_create(&sender, NULL, send_half, &sent[0]))
        die("start a thread");
    for (size_t at = 0; at < HALF; at += most) {
        size_t count = HALF - at < most ? HALF - at : most;
        receive_exactly(socket, (char *)piece, count * sizeof(float));
        add(sum + mine + at, input + mine + at, piece, count);
    }
    pthread_join(sender, NULL);
    if (pthread_create(&sender, NULL, send_half, &sent[1]))
        die("start a thread");
    receive_exactly(socket, (char *)(sum + theirs), HALF * sizeof(float));
    pthread_join(sender, NULL);
}

static double processor_seconds(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

static double lean(int socket, int own) {
    float *input = floats(FLOATS), *sum = floats(FLOATS), *piece = floats(piece_bytes / sizeof(float));
    double used[ROUNDS];
    for (size_t i = 0; i < FLOATS; i++)
        input[i] = (float)(i % 5 + (size_t)own);
    for (int round = -1; round < ROUNDS; round++) {
        exchange(socket);
        double before = processor_seconds();
        all_reduce(socket, own, input, sum, piece);
        if (round >= 0)
            used[round] = processor_seconds() - before;
    }
    for (size_t i = 0; i < FLOATS; i++)
        if (sum[i] != (float)(2 * (i % 5) + 1)) {
            errno = EBADMSG;
            die("add up");
        }
    return median(used, ROUNDS) / ((double)(FLOATS * sizeof(float)) / 1e9);
}

static int tuned(int socket) {
    int yes = 1;
    if (setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes))
        die("set up a connection");
    return socket;
}

static int connected(int listens, const char *host) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(9499)};
    int plain = socket(AF_INET, SOCK_STREAM, 0), connection = -1, yes = 1;
    if (plain < 0 || inet_pton(AF_INET, host, &address.sin_addr) != 1)
        die("read an address");
    if (listens) {
        setsockopt(plain, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
        if (bind(plain, (struct sockaddr *)&address, sizeof address) || listen(plain, 1))
            die("listen");
        connection = accept(plain, NULL, NULL);
    } else {
        for (int tries = 0; tries < 500; tries++) {
            if (!connect(plain, (struct sockaddr *)&address, sizeof address)) {
                connection = plain;
                break;
            }
            close(plain);
            plain = socket(AF_INET, SOCK_STREAM, 0);
            usleep(10000);
        }
    }
    if (connection < 0)
        die("connect");
    return tuned(connection);
}

static void print_of(int connection, double value) {
    char control[16] = "";
    socklen_t size = sizeof control;
    getsockopt(connection, IPPROTO_TCP, TCP_CONGESTION, control, &size);
    printf("%.3f %.15s\n", value, control);
}

static void measure_tcp(int connection) {
    double times[ROUNDS];
    /* One round to let the windows grow. */
    for (int round = -1; round < ROUNDS; round++) {
        exchange(connection);
        uint64_t begin = now_ns();
        both_ways(connection);
        exchange(connection);
        if (round >= 0)
            times[round] = (double)(now_ns() - begin);
    }
    /* What this end has sent. */
    print_of(connection, (double)SEND_BYTES / median(times, ROUNDS));
}

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "memcpy") && atoi(argv[2]) > 0 && atoi(argv[2]) <= 64)
        measure_memcpy(atoi(argv[2]));
    else if ((argc == 3 || argc == 4) && (!strcmp(argv[1], "listen") || !strcmp(argv[1], "dial"))) {
        int listens = argv[1][0] == 'l', connection = connected(listens, argv[2]);
        piece_bytes = argc == 4 ? (size_t)atoi(argv[3]) << 10 : 0;
        if (piece_bytes)
            print_of(connection, lean(connection, listens));
        else
            measure_tcp(connection);
    } else {
        fprintf(stderr, "usage: limits memcpy THREADS | (listen|dial) ADDRESS [KIB]\n");
        return 2;
    }
    return 0;
}
