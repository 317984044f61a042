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
#define BEHAVIOURS "# behaviours: " /* begins what host.py adds to it in the file */

static void print_gpu(FILE *out, const struct gpu *gpu, const char *line)
{
    const char *mode = strstr(line, " mig="), *model = strstr(line, " model=");
    fprintf(out, "%.*s mig=%d/%d%s\n", (int)(mode - line), line, gpu->mig_current, gpu->mig_pending, model);
    for (int i = 0; i < gpu->instance_count; i++)
        fprintf(out, "instance = %d gi=%u profile=%u placement=%u:%u\n", gpu->number, gpu->instances[i].gi,
                gpu->instances[i].profile, gpu->instances[i].start, gpu->instances[i].size);
    for (int i = 0; i < gpu->mig_count; i++) {
        const struct mig *mig = &gpu->migs[i];
        fprintf(out, "mig = %d gi=%u ci=%u caps=%d,%d profile=%s uuid=%s slices=%u:%u memory=%u\n", gpu->number,
                mig->gi, mig->ci, mig->gi_cap, mig->ci_cap, mig->profile, mig->uuid, mig->start, mig->size,
                mig->memory_mib);
    }
}

/* fakehost.conf with this GPU's lines written again; its size, or -1. */
static ssize_t edit_conf(const struct host *host, const struct gpu *gpu, char *edited)
{
    static char text[TEXT_SIZE];
    char path[4096], *rest = text, *line;
    snprintf(path, sizeof path, "%s/etc/fakehost.conf", host->root);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? -1 : read(fd, text, TEXT_SIZE - 1);
    if (fd >= 0)
        close(fd);
    FILE *out = size < 0 ? NULL : fmemopen(edited, TEXT_SIZE, "w");
    if (out == NULL)
        return -1;
    text[size] = '\0';
    while ((line = strsep(&rest, "\n")) != NULL) {
        int number;
        if (sscanf(line, "gpu = %d minor", &number) == 1 && number == gpu->number)
            print_gpu(out, gpu, line);
        else if ((sscanf(line, "mig = %d", &number) != 1 && sscanf(line, "instance = %d", &number) != 1) ||
                 number != gpu->number)
            fprintf(out, rest ? "%s\n" : "%s", line);
    }
    size = ftell(out);
    return fclose(out) == 0 && size < TEXT_SIZE ? size : -1;
}

int store_conf(const struct host *host, const struct gpu *gpu)
{
    static char edited[TEXT_SIZE];
    char path[4096], fresh[4200];
    struct timespec times[2];
    ssize_t size = edit_conf(host, gpu, edited);
    snprintf(path, sizeof path, "%s/etc/fakehost.conf", host->root);
    snprintf(fresh, sizeof fresh, "%s.new", path);
    int fd = size < 0 ? -1 : open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        return -1;
    int whole = write(fd, edited, size) == size;
    /* The kernel's own stamps are some milliseconds coarse, too coarse for who tells two changes apart by them. */
    clock_gettime(CLOCK_REALTIME, &times[0]);
    times[1] = times[0];
    futimens(fd, times);
    close(fd);
    return whole ? rename(fresh, path) : -1;
}

static int store_library(const char *path, const char *text)
{
    struct stat st;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return -1;
    char *content = fstat(fd, &st) == 0 ? malloc(st.st_size) : NULL, *place = NULL;
    if (content && read(fd, content, st.st_size) == st.st_size)
        place = memmem(content, st.st_size, baked_mark(), MARK_SIZE);
    int stored = place && pwrite(fd, text, TEXT_SIZE, place - content) == TEXT_SIZE;
    free(content);
    close(fd);
    return stored ? 0 : -1;
}

int store_baked(const struct host *host, const struct gpu *gpu)
{
    static char edited[TEXT_SIZE];
    static const char *libraries[] = {"libnvidia-ml.so", "libcuda.so"};
    char here[4096], path[8192];
    Dl_info self;
    memset(edited, 0, sizeof edited);
    ssize_t size = edit_conf(host, gpu, edited);
    if (size < 0 || dladdr((void *)store_baked, &self) == 0 || realpath(self.dli_fname, here) == NULL)
        return -1;
    char *behaviours = strstr(edited, BEHAVIOURS), *folder = dirname(here);
    if (behaviours) /* containers know nothing of them */
        memset(behaviours, 0, edited + size - behaviours);
    for (unsigned i = 0; i < sizeof libraries / sizeof *libraries; i++) {
        snprintf(path, sizeof path, "%s/%s.%s", folder, libraries[i], host->driver);
        if (store_library(path, edited) != 0)
            return -1;
    }
    return 0;
}
