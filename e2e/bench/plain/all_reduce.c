/* Eight inputs of floats added into one result by all cores, each with a part of every input: the bytes of input in the
 * best round. A loop that the compiler turns into vector instructions. */
#include "plain.h"

#define RANKS 8
#define BYTES ((size_t)128 << 20) /* of an input, all cores together */
static double limit, best;

struct share {
    size_t count;
    float *input[RANKS], *sum;
};

static void add(void *share) {
    struct share *s = share;
    const float *a = s->input[0], *b = s->input[1], *c = s->input[2], *d = s->input[3];
    const float *e = s->input[4], *f = s->input[5], *g = s->input[6], *h = s->input[7];
    float *restrict sum = s->sum;
    for (size_t i = 0; i < s->count; i++)
        sum[i] = a[i] + b[i] + c[i] + d[i] + e[i] + f[i] + g[i] + h[i];
}

static void *on_core(void *place) {
    struct share s = {.count = BYTES / sizeof(float) / (size_t)core_count / 16 * 16};
    size_t bytes = s.count * sizeof(float);
    pin((int)(intptr_t)place);
    s.sum = memory(bytes);
    memset(s.sum, 0xff, bytes);
    for (int rank = 0; rank < RANKS; rank++) {
        s.input[rank] = memory(bytes);
        for (size_t i = 0; i < s.count; i++)
            s.input[rank][i] = (float)(1 << rank);
    }
    double time = best_round(limit, add, &s);
    if (s.sum[0] != 255 || s.sum[s.count - 1] != 255)
        die("add");
    if (!place)
        best = (double)RANKS * (double)bytes * core_count / time / 1e9;
    return NULL;
}

int main(int argc, char **argv) {
    limit = start(argc, argv);
    on_each(core_count, on_core);
    printf("sum %.6f\n", best);
    return 0;
}
