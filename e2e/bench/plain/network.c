/* Bytes over four TCP connections on the loopback, in one direction, after a warm-up of a sixteenth of the time: the
 * bytes that arrive. Nothing is compared. */
#include "plain.h"
#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define LANES 4
#define BLOCK ((size_t)128 << 10)
static double from, until;
static uint64_t arrived[LANES];
static int lanes[LANES];

static void *receive(void *place) {
    size_t lane = (size_t)(intptr_t)place;
    char *block = memory(BLOCK);
    ssize_t got;
    while (now() < until && (got = recv(lanes[lane], block, BLOCK, 0)) > 0)
        if (now() >= from)
            arrived[lane] += (uint64_t)got;
    return NULL;
}

static void *send_all(void *place) {
    char *block = memory(BLOCK);
    memset(block, 0x5a, BLOCK);
    while (send(lanes[(intptr_t)place], block, BLOCK, MSG_NOSIGNAL) > 0)
        ;
    return NULL;
}

static void with_threads(void *(*work)(void *)) {
    pthread_t threads[LANES];
    for (int lane = 0; lane < LANES; lane++)
        if (pthread_create(&threads[lane], NULL, work, (void *)(intptr_t)lane))
            die("start a thread");
    for (int lane = 0; lane < LANES; lane++)
        pthread_join(threads[lane], NULL);
}

int main(int argc, char **argv) {
    double limit = start(argc, argv);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, length) || listen(listener, LANES) ||
        getsockname(listener, (struct sockaddr *)&address, &length))
        die("listen");
    pid_t sender = fork();
    if (sender < 0)
        die("start the sender");
    for (int lane = 0; lane < LANES; lane++) {
        lanes[lane] = sender ? accept(listener, NULL, NULL) : socket(AF_INET, SOCK_STREAM, 0);
        if (lanes[lane] < 0 || (!sender && connect(lanes[lane], (struct sockaddr *)&address, length)))
            die("connect");
    }
    if (!sender) {
        with_threads(send_all);
        return 0;
    }
    from = now() + limit / 16;
    until = now() + limit;
    with_threads(receive);
    uint64_t bytes = 0;
    for (int lane = 0; lane < LANES; lane++) {
        bytes += arrived[lane];
        close(lanes[lane]);
    }
    waitpid(sender, NULL, 0);
    printf("one way %.6f\n", (double)bytes / (until - from) / 1e9);
    return 0;
}
