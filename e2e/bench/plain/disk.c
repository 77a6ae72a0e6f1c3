/* A file written and then read in order, in blocks of 4 MiB past the page cache, as `dd oflag=direct` does: half of the
 * time each, 64 MiB at least and 1 GiB at most. Flushing counts as writing. */
#include "plain.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK ((size_t)4 << 20)
#define LEAST ((size_t)64 << 20)
#define MOST ((size_t)1 << 30)

int main(int argc, char **argv) {
    double limit = start(argc, argv) / 2;
    const char *folder = argc > 2 ? argv[2] : ".";
    char path[4096];
    snprintf(path, sizeof path, "%s/plain-disk-%d", folder, (int)getpid());
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0600);
    if (file < 0)
        file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || unlink(path))
        die("create a file");
    char *block = memory(BLOCK);
    for (size_t i = 0; i < BLOCK; i++)
        block[i] = (char)(i * 2654435761u >> 16);

    size_t wrote = 0, got = 0;
    double began = now();
    while (wrote < LEAST || (now() - began < limit && wrote < MOST)) {
        if (write(file, block, BLOCK) != (ssize_t)BLOCK)
            die("write");
        wrote += BLOCK;
    }
    if (fsync(file) || posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED))
        die("flush");
    printf("write %.6f\n", (double)wrote / (now() - began) / 1e9);

    if (lseek(file, 0, SEEK_SET))
        die("go to the start");
    began = now();
    while (got < wrote && (got < LEAST || now() - began < limit)) {
        if (read(file, block, BLOCK) != (ssize_t)BLOCK)
            die("read");
        got += BLOCK;
    }
    printf("read %.6f\n", (double)got / (now() - began) / 1e9);
    return 0;
}
