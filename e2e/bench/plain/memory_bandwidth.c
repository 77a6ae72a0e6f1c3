/* The triad of STREAM by all cores, each with arrays of its own: the best of its rounds. Sums are written past the
 * caches where the processor can, so memory moves what is counted: two arrays read, one written. */
#include "plain.h"
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#define BYTES ((size_t)512 << 20) /* of an array, all cores together */
static double limit, best;

struct arrays {
    size_t count;
    double *one, *two, *sum;
};

static void triad(void *arrays) {
    struct arrays *a = arrays;
    double factor = 3;
#if defined(__AVX__) && !defined(NO_STREAMING)
    __m256d factors = _mm256_set1_pd(factor);
    for (size_t i = 0; i < a->count; i += 4) {
        __m256d product = _mm256_mul_pd(factors, _mm256_load_pd(a->two + i));
        _mm256_stream_pd(a->sum + i, _mm256_add_pd(_mm256_load_pd(a->one + i), product));
    }
    _mm_sfence();
#elif defined(__SSE2__) && !defined(NO_STREAMING)
    __m128d factors = _mm_set1_pd(factor);
    for (size_t i = 0; i < a->count; i += 2) {
        __m128d product = _mm_mul_pd(factors, _mm_load_pd(a->two + i));
        _mm_stream_pd(a->sum + i, _mm_add_pd(_mm_load_pd(a->one + i), product));
    }
    _mm_sfence();
#else
    double *restrict sum = a->sum;
    for (size_t i = 0; i < a->count; i++)
        sum[i] = a->one[i] + factor * a->two[i];
#endif
}

static void *on_core(void *place) {
    size_t count = BYTES / sizeof(double) / (size_t)core_count / 8 * 8, bytes = count * sizeof(double);
    pin((int)(intptr_t)place);
    struct arrays a = {count, memory(bytes), memory(bytes), memory(bytes)};
    for (size_t i = 0; i < count; i++)
        a.one[i] = 1, a.two[i] = 2, a.sum[i] = 0.5;
    double time = best_round(limit, triad, &a);
    if (a.sum[0] != 7 || a.sum[count - 1] != 7)
        die("add");
    if (!place)
        best = 3.0 * (double)bytes * core_count / time / 1e9;
    return NULL;
}

int main(int argc, char **argv) {
    limit = start(argc, argv);
    on_each(core_count, on_core);
    printf("triad %.6f\n", best);
    return 0;
}
