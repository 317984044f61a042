/* The simulated libnvidia-ml.so.1: what an administrator of MPS and of memory limits sets.
 *
 * Compute modes last between processes, in usr/lib/fakehost/compute-mode-UUID of the host, and time slices, for which
 * NVML has no public function, in time-slice-UUID; where there is no-time-slices, the GPU has none. Memory limits are written
 * to usr/lib/fakehost/memory-limits, a line each, as is what is used, by a test, to memory-used; drivers before 615 do
 * not have them.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "nvml.h"

#define MODES 4
#define WITH_LIMITS 615

typedef struct {
    const char *cgroup;
    unsigned long long soft, hard;
} memory_limits_v1;

static FILE *open_file(const char *name, const char *uuid, const char *mode)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/usr/lib/fakehost", host.root);
    mkdir(path, 0755);
    snprintf(path, sizeof path, "%s/usr/lib/fakehost/%s%s", host.root, name, uuid);
    return fopen(path, mode);
}

EXPORT result nvmlDeviceGetComputeMode(device handle, unsigned *mode)
{
    NEED_GPU(gpu, handle, mode)
    *mode = 0;
    FILE *file = open_file("compute-mode-", gpu->uuid, "re");
    if (file) {
        if (fscanf(file, "%u", mode) != 1)
            *mode = 0;
        fclose(file);
    }
    return OK;
}

EXPORT result nvmlDeviceSetComputeMode(device handle, unsigned mode)
{
    NEED_GPU(gpu, handle, &mode)
    if (mode >= MODES)
        return INVALID_ARGUMENT;
    FILE *file = geteuid() == 0 && !host.in_container ? open_file("compute-mode-", gpu->uuid, "we") : NULL;
    if (file == NULL)
        return NO_PERMISSION;
    fprintf(file, "%u\n", mode);
    fclose(file);
    return OK;
}

EXPORT result fakehostTimeSlice(device handle, int sets, unsigned *value)
{
    NEED_GPU(gpu, handle, value)
    FILE *file = open_file("no-time-slices", "", "re");
    if (file)
        fclose(file);
    if (file || *value >= MODES)
        return file ? NOT_SUPPORTED : INVALID_ARGUMENT;
    if (sets && (geteuid() != 0 || host.in_container))
        return NO_PERMISSION;
    if ((file = open_file("time-slice-", gpu->uuid, sets ? "we" : "re")) == NULL)
        return sets ? NO_PERMISSION : OK;
    if (sets)
        fprintf(file, "%u\n", *value);
    else if (fscanf(file, "%u", value) != 1)
        *value = 0;
    fclose(file);
    return OK;
}

typedef struct {
    const char *cgroup;
    unsigned long long soft, hard, used;
} memory_used_v1;

static result check_limits(const struct gpu *gpu, const char *cgroup)
{
    struct stat status;
    if (atoi(host.driver) < WITH_LIMITS)
        return FUNCTION_NOT_FOUND;
    if (gpu->mig_current == 1)
        return NOT_SUPPORTED;
    return cgroup == NULL || stat(cgroup, &status) || !S_ISDIR(status.st_mode) ? INVALID_ARGUMENT : OK;
}

// The last number that was written for a cgroup and a GPU stands.
static unsigned long long last_number(const char *name, const struct gpu *gpu, const char *cgroup, unsigned long long last)
{
    FILE *file = open_file(name, "", "re");
    char uuid[64], directory[4096];
    unsigned long long number;
    while (file && fscanf(file, "%63s %4095s %llu", uuid, directory, &number) == 3)
        if (!strcmp(uuid, gpu->uuid) && !strcmp(directory, cgroup))
            last = number;
    if (file)
        fclose(file);
    return last;
}

// A file memory-limits-wait keeps a limit from being answered, memory-limits-lost makes the driver forget each limit, without a word.
EXPORT result nvmlDeviceGetMemoryLimits_v1(device handle, memory_used_v1 *limits)
{
    NEED_GPU(gpu, handle, limits)
    result failed = check_limits(gpu, limits->cgroup);
    limits->soft = limits->used = 0;
    limits->hard = ~0ull;
    if (failed)
        return failed;
    FILE *lost = open_file("memory-limits-lost", "", "re");
    if (lost)
        fclose(lost);
    else
        limits->hard = last_number("memory-limits", gpu, limits->cgroup, ~0ull);
    limits->used = last_number("memory-used", gpu, limits->cgroup, 0);
    return OK;
}

EXPORT result nvmlDeviceSetMemoryLimits_v1(device handle, const memory_limits_v1 *limits)
{
    NEED_GPU(gpu, handle, limits)
    result failed = check_limits(gpu, limits->cgroup);
    if (failed || limits->soft > limits->hard)
        return failed ? failed : INVALID_ARGUMENT;
    FILE *file = geteuid() == 0 && !host.in_container ? open_file("memory-limits", "", "ae") : NULL;
    if (file == NULL)
        return NO_PERMISSION;
    fprintf(file, "%s %s %llu\n", gpu->uuid, limits->cgroup, limits->hard);
    fclose(file);
    while ((file = open_file("memory-limits-wait", "", "re")) != NULL) {
        fclose(file);
        usleep(10000);
    }
    return OK;
}
