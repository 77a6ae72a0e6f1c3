/* What the plain programs share: a clock, a thread on each core that this process may use, and rounds that all threads
 * do together. No code of the project is in them. A program prints a line `FIGURE VALUE` for each of its figures. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_CORES 1024
#define MAX_ROUNDS 1000000
static int cores[MAX_CORES], core_count;
static pthread_barrier_t together;

static inline void die(const char *what) {
    perror(what);
    exit(1);
}

static inline double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static inline void *memory(size_t bytes) {
    void *place = NULL;
    if (posix_memalign(&place, 4096, bytes))
        die("find memory");
    return place;
}

/* Finds the cores, and reads the time in seconds from the command line. */
static inline double start(int argc, char **argv) {
    double seconds = argc > 1 ? atof(argv[1]) : 0;
    cpu_set_t set;
    if (seconds <= 0) {
        fprintf(stderr, "usage: %s SECONDS [FOLDER]\n", argv[0]);
        exit(2);
    }
    if (sched_getaffinity(0, sizeof set, &set))
        die("find cores");
    for (int core = 0; core < CPU_SETSIZE && core_count < MAX_CORES; core++)
        if (CPU_ISSET(core, &set))
            cores[core_count++] = core;
    return seconds;
}

static inline void pin(int index) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cores[index], &set);
    if (pthread_setaffinity_np(pthread_self(), sizeof set, &set))
        die("use a core");
}

/* Starts `work` with 0, 1, 2 ... for as many cores, and waits for its end. */
static inline void on_each(int count, void *(*work)(void *)) {
    pthread_t threads[MAX_CORES];
    pthread_barrier_init(&together, NULL, (unsigned)count);
    for (intptr_t index = 0; index < count; index++)
        if (pthread_create(&threads[index], NULL, work, (void *)index))
            die("start a thread");
    for (int index = 0; index < count; index++)
        pthread_join(threads[index], NULL);
}

/* Repeats `round` in all threads of `on_each` until the time is over. Returns the time of the best round, from the
 * start of the first thread to the end of the last. */
static inline double best_round(double seconds, void (*round)(void *), void *argument) {
    static double began, round_began, best;
    static int over;
    if (pthread_barrier_wait(&together) == PTHREAD_BARRIER_SERIAL_THREAD)
        began = now(), best = seconds, over = 0;
    for (;;) {
        if (pthread_barrier_wait(&together) == PTHREAD_BARRIER_SERIAL_THREAD)
            round_began = now();
        pthread_barrier_wait(&together);
        if (over)
            return best;
        round(argument);
        if (pthread_barrier_wait(&together) == PTHREAD_BARRIER_SERIAL_THREAD) {
            double ended = now();
            best = ended - round_began < best ? ended - round_began : best;
            over = ended - began >= seconds;
        }
    }
}
