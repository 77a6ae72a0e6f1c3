/* How much memory is filled with six patterns one after the other, and compared with each, in the given time. Each core
 * takes new memory in blocks of 64 MiB, as the validator does. */
#include "plain.h"

#define WORDS (((size_t)64 << 20) / sizeof(uint64_t))
#define MAX_BYTES ((size_t)8 << 30)
static double limit;
static size_t blocks[MAX_CORES];

static inline uint64_t mixed(uint64_t place) {
    uint64_t bits = place * 0x9e3779b97f4a7c15;
    return bits >> 23 | bits << 41;
}

static inline uint64_t word(int pattern, uint64_t place) {
    switch (pattern) {
    case 0:
        return place * 8;
    case 1:
        return 0;
    case 2:
        return UINT64_MAX;
    case 3:
        return (uint64_t)1 << place % 64;
    case 4:
        return mixed(place);
    default:
        return ~mixed(place);
    }
}

/* The number of wrong words. Inlined with a constant pattern, so each has loops of its own. */
static inline __attribute__((always_inline)) size_t test(uint64_t *block, uint64_t first, int pattern) {
    size_t wrong = 0;
    for (size_t i = 0; i < WORDS; i++)
        block[i] = word(pattern, first + i);
    __asm__ volatile("" : : "r"(block) : "memory");
    for (size_t i = 0; i < WORDS; i++)
        wrong += block[i] != word(pattern, first + i);
    return wrong;
}

static void *on_core(void *place) {
    size_t index = (size_t)place, most = MAX_BYTES / sizeof(uint64_t) / WORDS / (size_t)core_count;
    double began = now(), longest = 0;
    pin((int)index);
    for (size_t done = 0; done < most && now() - began + longest < limit; done++) {
        double since = now();
        uint64_t *block = memory(WORDS * sizeof *block), first = (index * most + done) * WORDS;
        size_t wrong = test(block, first, 0) + test(block, first, 1) + test(block, first, 2) + test(block, first, 3) +
                       test(block, first, 4) + test(block, first, 5);
        if (wrong)
            die("read what was written");
        blocks[index] = done + 1;
        longest = now() - since > longest ? now() - since : longest;
    }
    return NULL;
}

int main(int argc, char **argv) {
    size_t all = 0;
    limit = start(argc, argv);
    on_each(core_count, on_core);
    for (int index = 0; index < core_count; index++)
        all += blocks[index];
    printf("covered %.6f\n", (double)(all * WORDS * sizeof(uint64_t)) / (1 << 30));
    return 0;
}
