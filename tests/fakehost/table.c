/* Reads the simulated host's table and tries its device nodes: see table.h.
 *
 * The text below is overwritten, in the built library, with a host's own table (see bake in compiled.py), so that
 * one compiled file serves every host. Its first line stays: it is how the place is found.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "table.h"

#define TEXT_SIZE 65536
#define NVIDIA_MAJOR 195 /* fixed in the driver; nvidia-uvm and nvidia-caps get theirs at load time */

static volatile const char baked[TEXT_SIZE] = "# simulated GPU host\n";

static struct gpu *find_gpu(struct host *host, int number)
{
    for (int i = 0; i < host->gpu_count; i++)
        if (host->gpus[i].number == number)
            return &host->gpus[i];
    return NULL;
}

static int parse_gpu(struct host *host, const char *line)
{
    struct gpu *gpu = &host->gpus[host->gpu_count];
    if (host->gpu_count == MAX_GPUS)
        return 0;
    int fields = sscanf(line,
                        "gpu = %d minor=%d pci=%x:%x:%x.0 uuid=%79s arch=%d.%d brand=%d memory=%llu "
                        "device=%x mig=%d/%d model=%95[^\n]",
                        &gpu->number, &gpu->minor, &gpu->domain, &gpu->bus, &gpu->device, gpu->uuid,
                        &gpu->arch_major, &gpu->arch_minor, &gpu->brand, &gpu->memory_mib, &gpu->device_id,
                        &gpu->mig_current, &gpu->mig_pending, gpu->model);
    gpu->recovery = -1;
    host->gpu_count += fields == 14;
    return fields == 14;
}

static int parse_mig(struct host *host, const char *line)
{
    struct mig mig = {.size = 0};
    int number;
    if (sscanf(line, "mig = %d gi=%u ci=%u caps=%d,%d profile=%31s uuid=%79s slices=%u:%u memory=%u", &number,
               &mig.gi, &mig.ci, &mig.gi_cap, &mig.ci_cap, mig.profile, mig.uuid, &mig.start, &mig.size,
               &mig.memory_mib) < 7)
        return 0;
    mig.parent = find_gpu(host, number);
    if (mig.parent == NULL || mig.parent->mig_count == MAX_MIG)
        return 0;
    mig.parent->migs[mig.parent->mig_count++] = mig;
    return 1;
}

static int parse_instance(struct host *host, const char *line)
{
    struct instance found;
    int number;
    if (sscanf(line, "instance = %d gi=%u profile=%u placement=%u:%u", &number, &found.gi, &found.profile,
               &found.start, &found.size) != 5)
        return 0;
    found.parent = find_gpu(host, number);
    if (found.parent == NULL || found.parent->instance_count == MAX_INSTANCES)
        return 0;
    found.parent->instances[found.parent->instance_count++] = found;
    return 1;
}

/* Lines about two GPUs, said of one of them. */
static int parse_pair(struct host *host, const char *line)
{
    int one, other, value, linked = strncmp(line, "link", 4) == 0;
    if (sscanf(line, linked ? "link = %d %d %d" : "near = %d %d %d", &one, &other, &value) != 3)
        return 0;
    struct gpu *a = find_gpu(host, one), *b = find_gpu(host, other);
    if (a == NULL || b == NULL || a == b || one >= MAX_GPUS || other >= MAX_GPUS)
        return 0;
    (linked ? a->links : a->near)[other] = (linked ? b->links : b->near)[one] = linked ? value : value + 1;
    return 1;
}

/* Lines of a GPU's number and one or two more about what is wrong with it. */
static int parse_trouble(struct host *host, const char *line)
{
    char name[16];
    int number, one = 0, two = 0;
    if (sscanf(line, "%15s = %d %d %d", name, &number, &one, &two) < 3 || find_gpu(host, number) == NULL)
        return 0;
    struct gpu *gpu = find_gpu(host, number);
    struct { const char *name; int *place; } known[] = {
        {"fail_gpu", &gpu->fail}, {"lost", &gpu->lost}, {"hang_gpu", &gpu->hang}, {"no_events", &gpu->no_events},
        {"recovery", &gpu->recovery}, {"rows", &gpu->rows_pending},
        {"fabric_state", &gpu->fabric_state}, {"no_reset", &gpu->no_reset},
    };
    for (unsigned i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].name, name) == 0) {
            *known[i].place = one;
            if (known[i].place == &gpu->rows_pending)
                gpu->rows_failed = two;
            if (known[i].place == &gpu->fabric_state)
                gpu->fabric_status = two;
            return 1;
        }
    return 0;
}

/* "figure sm_clock = 0 1410", of GPU instance 3: "figure memory_used@3 = 0 1024". */
static int parse_figure(struct host *host, const char *line)
{
    char name[32] = "";
    int number;
    unsigned long long value;
    if (sscanf(line, "figure %31s = %d %llu", name, &number, &value) != 3)
        return 0;
    struct gpu *gpu = find_gpu(host, number);
    if (gpu == NULL || gpu->figure_count == MAX_FIGURES)
        return 0;
    char *at = strchr(name, '@');
    gpu->figures[gpu->figure_count].gi = at ? atoi(at + 1) : -1;
    if (at)
        *at = '\0';
    strcpy(gpu->figures[gpu->figure_count].name, name);
    gpu->figures[gpu->figure_count++].value = value;
    return 1;
}

/* fabric = GPU UUID-without-dashes CLIQUE */
static int parse_fabric(struct host *host, const char *line)
{
    char text[33];
    unsigned clique, byte;
    int number;
    if (sscanf(line, "fabric = %d %32s %u", &number, text, &clique) != 3 || find_gpu(host, number) == NULL)
        return 0;
    struct gpu *gpu = find_gpu(host, number);
    gpu->clique = clique;
    for (int i = 0; i < 16 && sscanf(text + 2 * i, "%2x", &byte) == 1; i++)
        gpu->cluster[i] = byte;
    return 1;
}

static int parse_lacking(struct host *host, const char *line)
{
    int i = host->lacking_count;
    if (i == MAX_LACKING ||
        sscanf(line, "lacks = %47s %d", host->lacking[i].function, &host->lacking[i].code) != 2)
        return 0;
    host->lacking_count++;
    return 1;
}

static int parse_line(struct host *host, const char *line)
{
    int number, code;
    if (line[0] == '#' || line[strspn(line, " \t")] == '\0')
        return 1;
    if (strncmp(line, "gpu =", 5) == 0)
        return parse_gpu(host, line);
    if (strncmp(line, "mig =", 5) == 0)
        return parse_mig(host, line);
    if (strncmp(line, "instance =", 10) == 0)
        return parse_instance(host, line);
    if (strncmp(line, "link =", 6) == 0 || strncmp(line, "near =", 6) == 0)
        return parse_pair(host, line);
    if (sscanf(line, "switch = %d %d", &number, &code) == 2 && find_gpu(host, number)) {
        find_gpu(host, number)->switched = code;
        return 1;
    }
    if (parse_fabric(host, line) || parse_trouble(host, line) || parse_lacking(host, line) ||
        parse_figure(host, line))
        return 1;
    return sscanf(line, "root = %3071[^\n]", host->root) == 1 || sscanf(line, "dev = %3071[^\n]", host->dev) == 1 ||
           sscanf(line, "driver = %63s", host->driver) == 1 ||
           sscanf(line, "cuda = %d.%d", &host->cuda_major, &host->cuda_minor) == 2 ||
           sscanf(line, "delay_ms = %d", &host->delay_ms) == 1 || sscanf(line, "hang = %d", &host->hang) == 1 ||
           sscanf(line, "fail = %d", &host->fail) == 1 ||
           sscanf(line, "fail_links = %d", &host->fail_links) == 1;
}

/* Parse a whole text, which is cut to pieces; 0 and a line on stderr when it cannot be read. */
static int parse_text(struct host *host, char *text)
{
    char *rest = text, *line;
    memset(host, 0, sizeof *host);
    while ((line = strsep(&rest, "\n")) != NULL) {
        if (!parse_line(host, line)) {
            fprintf(stderr, "fakehost: cannot read this line of the table: %s\n", line);
            return 0;
        }
    }
    if (host->dev[0] == '\0')
        strcpy(host->dev, host->root);
    return 1;
}

int load_host(struct host *host)
{
    static char text[TEXT_SIZE], path[4096];
    char root[3072] = "", *line;
    for (int i = 0; i < TEXT_SIZE; i++)
        text[i] = baked[i];
    /* Of the library's own table, which may be written anew meanwhile, a process on the host needs this line alone. */
    if ((line = strstr(text, "\nroot = ")) != NULL)
        sscanf(line, "\nroot = %3071[^\n]", root);
    snprintf(path, sizeof path, "%s/etc/fakehost.conf", root);
    int fd = root[0] ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        ssize_t size = read(fd, text, TEXT_SIZE - 1);
        close(fd);
        if (size < 0)
            return 0;
        text[size] = '\0';
        return parse_text(host, text);
    }
    if (!parse_text(host, text))
        return 0;
    snprintf(path, sizeof path, "%s/etc", host->root); /* of the host a pod may see /proc, as that is the kernel's */
    if (access(path, F_OK) != 0) {
        host->in_container = 1;
        host->root[0] = host->dev[0] = '\0';
    }
    return 1;
}

const char *baked_mark(void)
{
    return (const char *)baked;
}

/* The file has to be the right character device: a real client's ioctl would find out that it is not. */
int try_node(const struct host *host, int flags, int minor, const char *format, ...)
{
    char path[4096];
    struct stat st;
    va_list names;
    int used = snprintf(path, sizeof path, "%s/dev/", host->dev);
    va_start(names, format);
    vsnprintf(path + used, sizeof path - used, format, names);
    va_end(names);
    if (stat(path, &st) != 0)
        return errno;
    if (!S_ISCHR(st.st_mode) || (minor != ANY_DEVICE && st.st_rdev != makedev(NVIDIA_MAJOR, minor)))
        return ENOTTY;
    int fd = open(path, flags | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return errno == ENXIO ? 0 : errno;
    close(fd);
    return 0;
}

int gpu_opens(const struct host *host, const struct gpu *gpu)
{
    return try_node(host, O_RDWR, gpu->minor, "nvidia%d", gpu->minor) == 0;
}
