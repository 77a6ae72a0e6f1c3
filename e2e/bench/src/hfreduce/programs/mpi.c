/* The rival that speaks MPI: all-reduce of floats under the conductor's words, for any MPI library. Several tensors
 * are called one after the other, which is faster in the libraries measured here than MPI_Iallreduce of all. */
#include "gang.h"
#include <mpi.h>

/* Elements after which inputs and sums repeat, and what a rank's are multiplied with. */
#define PERIOD 5
#define WEIGHT(rank) ((rank) % 3 + 1)

static float **in, **out;
static int tensors, rank, size;
static size_t count;

static void release(void) {
    for (int i = 0; i < tensors; i++) {
        free(in[i]);
        free(out[i]);
    }
    free(in);
    free(out);
    in = out = NULL;
    tensors = 0;
}

static float *floats(void) {
    float *memory = NULL;
    if (posix_memalign((void **)&memory, 4096, count * sizeof *memory))
        die("find memory for a tensor");
    memset(memory, 0, count * sizeof *memory);
    return memory;
}

static void run(void) {
    for (int i = 0; i < tensors; i++)
        MPI_Allreduce(in[i], out[i], (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

/* Runs once with numbers whose sum is known; says whether every element is right. */
static int check(void) {
    float weights = 0;
    for (int other = 0; other < size; other++)
        weights += (float)WEIGHT(other);
    for (int i = 0; i < tensors; i++)
        for (size_t at = 0; at < count; at++)
            in[i][at] = (float)(at % PERIOD) * (float)WEIGHT(rank);
    run();
    for (int i = 0; i < tensors; i++)
        for (size_t at = 0; at < count; at++)
            if (out[i][at] != (float)(at % PERIOD) * weights)
                return 0;
    return 1;
}

static void prepare(size_t bytes, int number) {
    release();
    tensors = number;
    count = bytes / sizeof(float);
    in = calloc((size_t)number, sizeof *in);
    out = calloc((size_t)number, sizeof *out);
    if (!in || !out)
        die("find memory for tensors");
    for (int i = 0; i < number; i++) {
        in[i] = floats();
        out[i] = floats();
    }
    gang_say(check() ? "ok" : "failed the sum is wrong");
}

static void go(int times) {
    uint64_t total = 0, *each = calloc((size_t)times, sizeof *each), begin = now_ns();
    if (!each)
        die("find memory for times");
    for (int i = 0; i < times; i++) {
        run();
        uint64_t end = now_ns();
        each[i] = end - begin;
        total += each[i];
        begin = end;
    }
    fprintf(gang_out, "%llu", (unsigned long long)total);
    for (int i = 0; i < times; i++)
        fprintf(gang_out, " %llu", (unsigned long long)each[i]);
    gang_say("");
    free(each);
}

int main(int argc, char **argv) {
    char line[256], dtype[16];
    size_t bytes;
    int number;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    gang_join(rank);
    while (gang_hear(line, sizeof line)) {
        if (sscanf(line, "case %zu %d %15s", &bytes, &number, dtype) == 3) {
            if (strcmp(dtype, "f32"))
                gang_say("failed MPI has no such type");
            else
                prepare(bytes, number);
        } else if (sscanf(line, "go %d", &number) == 1) {
            go(number);
        } else if (!strncmp(line, "end", 3)) {
            release();
            gang_say("ok");
        } else if (!strncmp(line, "quit", 4)) {
            MPI_Finalize();
            return 0;
        } else {
            gang_say("failed unknown words");
        }
    }
    /* The conductor is gone, and with it perhaps other ranks: nothing to wait for. */
    _exit(1);
}
