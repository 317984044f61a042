/* Writes what NVML has made of a GPU into the simulated host's table: see table.h.
 *
 * fakehost.conf gets a new inode, so that a reader has all of it or nothing; the libraries keep theirs, by which
 * containers have them. Out of scope: what else the table says, which stays as it is.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "table.h"

#define TEXT_SIZE 65536
#define MARK_SIZE 21 /* of the first line of a baked table */

static void print_gpu(FILE *out, const struct gpu *gpu, const char *line)
{
    const char *mode = strstr(line, " mig="), *model = strstr(line, " model=");
    fprintf(out, "%.*s mig=%d/%d%s\n", (int)(mode - line), line, gpu->mig_current, gpu->mig_pending, model);
    for (int i = 0; i < gpu->instance_count; i++)
        fprintf(out, "instance = %d gi=%u profile=%u placement=%u:%u\n", gpu->number, gpu->instances[i].gi,
                gpu->instances[i].profile, gpu->instances[i].start, gpu->instances[i].size);
    for (int i = 0; i < gpu->mig_count; i++) {
        const struct mig *mig = &gpu->migs[i];
        fprintf(out, "mig = %d gi=%u ci=%u caps=%d,%d profile=%s uuid=%s slices=%u:%u\n", gpu->number, mig->gi,
                mig->ci, mig->gi_cap, mig->ci_cap, mig->profile, mig->uuid, mig->start, mig->size);
    }
}

/* The text with this GPU's lines written again; its size, or -1 if it does not fit. */
static ssize_t edit(char *text, const struct gpu *gpu, char *edited)
{
    char *rest = text, *line;
    FILE *out = fmemopen(edited, TEXT_SIZE, "w");
    if (out == NULL)
        return -1;
    while ((line = strsep(&rest, "\n")) != NULL) {
        int number;
        if (sscanf(line, "gpu = %d minor", &number) == 1 && number == gpu->number)
            print_gpu(out, gpu, line);
        else if ((sscanf(line, "mig = %d", &number) != 1 && sscanf(line, "instance = %d", &number) != 1) ||
                 number != gpu->number)
            fprintf(out, rest ? "%s\n" : "%s", line);
    }
    ssize_t size = ftell(out);
    return fclose(out) == 0 && size < TEXT_SIZE ? size : -1;
}

int store_conf(const struct host *host, const struct gpu *gpu)
{
    static char text[TEXT_SIZE], edited[TEXT_SIZE];
    char path[4096], fresh[4200];
    struct timespec times[2];
    snprintf(path, sizeof path, "%s/etc/fakehost.conf", host->root);
    snprintf(fresh, sizeof fresh, "%s.new", path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? -1 : read(fd, text, TEXT_SIZE - 1);
    if (fd >= 0)
        close(fd);
    if (size < 0)
        return -1;
    text[size] = '\0';
    if ((size = edit(text, gpu, edited)) < 0)
        return -1;
    if ((fd = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) < 0)
        return -1;
    int whole = write(fd, edited, size) == size;
    /* The kernel's own stamps are some milliseconds coarse, too coarse for who tells two changes apart by them. */
    clock_gettime(CLOCK_REALTIME, &times[0]);
    times[1] = times[0];
    futimens(fd, times);
    close(fd);
    return whole ? rename(fresh, path) : -1;
}

static int store_library(const char *path, const struct gpu *gpu, const char *mark)
{
    static char text[TEXT_SIZE], edited[TEXT_SIZE];
    struct stat st;
    int fd = open(path, O_RDWR | O_CLOEXEC), result = -1;
    if (fd < 0)
        return -1;
    char *content = fstat(fd, &st) == 0 ? malloc(st.st_size) : NULL;
    char *place = NULL;
    if (content && read(fd, content, st.st_size) == st.st_size)
        place = memmem(content, st.st_size, mark, MARK_SIZE);
    if (place) {
        memcpy(text, place, TEXT_SIZE);
        memset(edited, 0, sizeof edited);
        if (edit(text, gpu, edited) >= 0)
            result = pwrite(fd, edited, TEXT_SIZE, place - content) == TEXT_SIZE ? 0 : -1;
    }
    free(content);
    close(fd);
    return result;
}

int store_baked(const struct host *host, const struct gpu *gpu)
{
    static const char *libraries[] = {"libnvidia-ml.so", "libcuda.so"};
    char here[4096], path[8192];
    Dl_info self;
    if (dladdr((void *)store_baked, &self) == 0 || realpath(self.dli_fname, here) == NULL)
        return -1;
    char *folder = dirname(here);
    for (unsigned i = 0; i < sizeof libraries / sizeof *libraries; i++) {
        snprintf(path, sizeof path, "%s/%s.%s", folder, libraries[i], host->driver);
        if (store_library(path, gpu, baked_mark()) != 0)
            return -1;
    }
    return 0;
}
