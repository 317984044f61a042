/* The simulated libnvidia-ml.so.1: what changes while a process has it open.
 *
 * fakehost.conf is read again when it has changed: a GPU that goes, is lost or hangs, and MIG devices made again, are
 * noticed by the next call. What nvmlInit decides stays: a GPU that appears waits for the next one, as with the driver.
 * Out of scope: containers, which do not carry the file.
 */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "nvml.h"

#define HANG_US 5000

static struct host now;
static struct stat seen;

const struct host *live_host(void)
{
    char path[4096];
    struct stat found;
    snprintf(path, sizeof path, "%s/etc/fakehost.conf", host.root);
    if (host.in_container || stat(path, &found) != 0)
        return &host;
    if (found.st_ino != seen.st_ino || memcmp(&found.st_mtim, &seen.st_mtim, sizeof found.st_mtim) != 0) {
        if (!load_host(&now))
            return &host;
        seen = found;
    }
    return &now;
}

const struct gpu *live_gpu(const struct gpu *gpu)
{
    const struct host *found = live_host();
    for (int i = 0; i < found->gpu_count; i++)
        if (strcmp(found->gpus[i].uuid, gpu->uuid) == 0)
            return &found->gpus[i];
    return NULL;
}

result lost(const struct gpu *gpu)
{
    const struct gpu *found = live_gpu(gpu);
    return found ? (result)found->lost : GPU_IS_LOST;
}

result reach(const struct gpu *gpu)
{
    const struct gpu *found;
    while ((found = live_gpu(gpu)) != NULL && found->hang)
        usleep(HANG_US);
    return lost(gpu);
}

result lacks(const char *function)
{
    const struct host *found = live_host();
    for (int i = 0; i < found->lacking_count; i++)
        if (strcmp(found->lacking[i].function, function) == 0)
            return found->lacking[i].code;
    return OK;
}

void renew_migs(struct gpu *gpu)
{
    const struct gpu *found = live_gpu(gpu);
    if (found == NULL || host.in_container)
        return;
    gpu->mig_current = found->mig_current;
    gpu->mig_pending = found->mig_pending;
    gpu->mig_count = found->mig_count;
    for (int i = 0; i < found->mig_count; i++) {
        gpu->migs[i] = found->migs[i];
        gpu->migs[i].parent = gpu;
    }
    gpu->instance_count = found->instance_count;
    for (int i = 0; i < found->instance_count; i++) {
        gpu->instances[i] = found->instances[i];
        gpu->instances[i].parent = gpu;
    }
    find_instances(gpu);
    keep_visible_migs(gpu);
}
