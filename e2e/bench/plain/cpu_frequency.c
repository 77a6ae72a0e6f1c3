/* The clock of a core: additions to a register that wait for each other take a cycle each. Unlike the validator's chain
 * this one is written down as instructions, of one kind. */
#include "plain.h"

#define LINKS 64
#define BLOCKS 1000
static double window, clocks[MAX_CORES];

static double gigahertz(double seconds) {
    uint64_t value = 1, step = 3;
    double links = 0, began = now(), took;
    do {
        for (int block = 0; block < BLOCKS; block++) {
#if defined(__x86_64__)
            __asm__ volatile(".rept 64\n\tadd %1, %0\n\t.endr" : "+r"(value) : "r"(step));
#elif defined(__aarch64__)
            __asm__ volatile(".rept 64\n\tadd %0, %0, %1\n\t.endr" : "+r"(value) : "r"(step));
#else
#error "no chain is written down for this processor"
#endif
        }
        links += BLOCKS * LINKS;
        took = now() - began;
    } while (took < seconds);
    return links / took / 1e9;
}

static void *on_core(void *place) {
    int index = (int)(intptr_t)place;
    pin(index);
    gigahertz(window / 5); /* comes to speed */
    pthread_barrier_wait(&together);
    clocks[index] = gigahertz(window);
    return NULL;
}

static int by_size(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

int main(int argc, char **argv) {
    /* Half of the time for the first core alone, half for all of them. */
    window = start(argc, argv) / 2.4;
    on_each(1, on_core);
    printf("one core %.6f\n", clocks[0]);
    on_each(core_count, on_core);
    qsort(clocks, (size_t)core_count, sizeof *clocks, by_size);
    printf("all cores %.6f\n", (clocks[(core_count - 1) / 2] + clocks[core_count / 2]) / 2);
    return 0;
}
