/* The simulated libnvidia-ml.so.1: changes of a GPU's division, and of its MIG mode, that all processes see.
 *
 * The table on disk is what counts: a process that is killed on the way leaves at most access files and nodes that
 * nobody has, and the next change removes them. Ampere's mode waits for a reset, which NVML does by itself where it
 * can; later GPUs need none. Processes that use a GPU or a MIG device stand in usr/lib/fakehost/clients, a line with
 * its UUID and their process id each, as long as they live.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "nvml_mig.h"

#define CONFIG "nvidia-caps/nvidia-cap1"
#define WITH_RESET 8 /* Ampere's compute capability */

static int lock = -1;

static result unlock(result answer)
{
    close(lock);
    return answer;
}

result begin_change(const struct gpu *gpu, struct gpu **changing)
{
    static struct host seen_by_all;
    char path[4096];
    if (geteuid() != 0 || host.in_container || try_node(&host, O_RDONLY, ANY_DEVICE, CONFIG) != 0)
        return NO_PERMISSION;
    snprintf(path, sizeof path, "%s/etc/fakehost.lock", host.root);
    if ((lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600)) < 0 || flock(lock, LOCK_EX) != 0)
        return UNKNOWN;
    if (!load_host(&seen_by_all))
        return unlock(UNKNOWN);
    for (int i = 0; i < seen_by_all.gpu_count; i++) {
        if (strcmp(seen_by_all.gpus[i].uuid, gpu->uuid) != 0)
            continue;
        *changing = &seen_by_all.gpus[i];
        find_instances(*changing);
        hide_instances(*changing);
        return OK;
    }
    return unlock(GPU_IS_LOST);
}

result end_change(struct gpu *changing, int grows)
{
    int failed = 0;
    if (grows > 0) {
        show_instances(changing);
        failed = store_baked(&host, changing) || store_conf(&host, changing);
    } else if (grows == 0) {
        failed = store_conf(&host, changing) || store_baked(&host, changing);
        hide_instances(changing);
    }
    return unlock(failed ? UNKNOWN : OK);
}

static int lives(int pid)
{
    char path[64], state = 'Z';
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return 0;
    if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
        state = 'Z';
    fclose(file);
    return state != 'Z' && state != 'X';
}

int in_use(const struct gpu *gpu, const char *uuid)
{
    char path[4096], name[80];
    int pid, used = 0;
    snprintf(path, sizeof path, "%s/usr/lib/fakehost/clients", host.root);
    FILE *file = fopen(path, "re");
    while (file && !used && fscanf(file, "%79s %d", name, &pid) == 2) {
        int about = strcmp(name, uuid) == 0;
        for (int i = 0; i < gpu->mig_count && strcmp(uuid, gpu->uuid) == 0; i++)
            about |= strcmp(name, gpu->migs[i].uuid) == 0;
        used = about && lives(pid);
    }
    if (file)
        fclose(file);
    return used;
}

EXPORT result nvmlDeviceSetMigMode(device handle, unsigned mode, result *activation)
{
    struct gpu *changing;
    NEED_GPU(gpu, handle, activation)
    NEED_FUNCTION
    if (mode > 1)
        return INVALID_ARGUMENT;
    if (gpu->mig_current < 0)
        return NOT_SUPPORTED;
    result failed = begin_change(gpu, &changing);
    if (failed)
        return failed;
    int resets = changing->arch_major == WITH_RESET, differs = changing->mig_current != (int)mode;
    *activation = OK;
    if (differs && (changing->instance_count || in_use(changing, changing->uuid)))
        *activation = IN_USE;
    else if (differs && resets && changing->no_reset)
        *activation = RESET_REQUIRED;
    else
        changing->mig_current = mode;
    if (resets || *activation == OK)
        changing->mig_pending = mode;
    return end_change(changing, 0);
}
