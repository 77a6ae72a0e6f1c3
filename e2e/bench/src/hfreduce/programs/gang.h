/* A rank's side of the conductor's socket: one line in, one line out. The Rust side of the same words is
 * hfreduce-sidecar/src/bench/rank.rs, the conductor e2e/bench/src/hfreduce/gang.rs. A rank that waits for its
 * next line sleeps, so the conductor is a barrier that takes no processor time from whoever is measured. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static FILE *gang_in, *gang_out;

static inline void die(const char *what) {
    fprintf(stderr, "failed to %s: %s\n", what, strerror(errno));
    exit(1);
}

static inline uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Connects to the socket that BENCH_CONDUCTOR names and says who this is. */
static inline void gang_join(int rank) {
    const char *path = getenv("BENCH_CONDUCTOR");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (!path || strlen(path) >= sizeof address.sun_path) {
        errno = EINVAL;
        die("read BENCH_CONDUCTOR");
    }
    strcpy(address.sun_path, path);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address))
        die("reach the conductor");
    gang_in = fdopen(fd, "r");
    gang_out = fdopen(dup(fd), "w");
    if (!gang_in || !gang_out)
        die("share the conductor's socket");
    fprintf(gang_out, "rank %d %d\n", rank, (int)getpid());
    fflush(gang_out);
}

/* The next line; 0 when the conductor is gone. */
static inline int gang_hear(char *line, int size) {
    return fgets(line, size, gang_in) != NULL;
}

static inline void gang_say(const char *line) {
    fprintf(gang_out, "%s\n", line);
    fflush(gang_out);
}
