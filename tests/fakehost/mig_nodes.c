/* What the driver shows of a GPU's instances beside NVML: their access files in /proc, and nodes in /dev/nvidia-caps.
 *
 * Nodes are made where the host has those of MIG's own two capabilities, with the same owner. Out of scope: the list
 * of all minors in /proc/driver/nvidia-caps, which is the same for any division.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "nvml_mig.h"

static void name_folder(const struct gpu *gpu, unsigned gi, unsigned ci, char *path, size_t size)
{
    int used = snprintf(path, size, "%s/proc/driver/nvidia/capabilities/gpu%d/mig/gi%u", host.root, gpu->minor, gi);
    if (ci != NO_COMPUTE)
        snprintf(path + used, size - used, "/ci%u", ci);
}

static void show_node(int minor)
{
    char path[4096];
    struct stat monitor;
    snprintf(path, sizeof path, "%s/dev/nvidia-caps/nvidia-cap2", host.dev);
    if (stat(path, &monitor) != 0)
        return;
    snprintf(path, sizeof path, "%s/dev/nvidia-caps/nvidia-cap%d", host.dev, minor);
    if (mknod(path, S_IFCHR | 0444, makedev(major(monitor.st_rdev), minor)) == 0 &&
        chown(path, monitor.st_uid, monitor.st_gid) == 0)
        chmod(path, 0444);
}

static void show(const struct gpu *gpu, unsigned gi, unsigned ci, int minor)
{
    char folder[3500], path[3600];
    name_folder(gpu, gi, ci, folder, sizeof folder);
    snprintf(path, sizeof path, "%s/access", folder);
    mkdir(folder, 0755);
    FILE *file = fopen(path, "wex");
    if (file) {
        fprintf(file, "DeviceFileMinor: %d\nDeviceFileMode: %d\nDeviceFileModify: 1\n", minor, 0444);
        fchmod(fileno(file), 0444);
        fclose(file);
    }
    show_node(minor);
}

static void hide(const struct gpu *gpu, unsigned gi, unsigned ci, int minor)
{
    char folder[3500], path[4096];
    name_folder(gpu, gi, ci, folder, sizeof folder);
    if (access(folder, F_OK) != 0)
        return;
    snprintf(path, sizeof path, "%s/dev/nvidia-caps/nvidia-cap%d", host.dev, minor);
    unlink(path);
    snprintf(path, sizeof path, "%s/access", folder);
    unlink(path);
    rmdir(folder);
}

void show_instances(const struct gpu *gpu)
{
    for (int i = 0; i < gpu->instance_count; i++)
        show(gpu, gpu->instances[i].gi, NO_COMPUTE, gi_cap(gpu, gpu->instances[i].gi));
    for (int i = 0; i < gpu->mig_count; i++)
        show(gpu, gpu->migs[i].gi, gpu->migs[i].ci, gpu->migs[i].ci_cap);
}

void hide_instances(const struct gpu *gpu)
{
    for (unsigned gi = 0; gi < MAX_INSTANCES; gi++) {
        for (unsigned ci = 0; ci < MAX_COMPUTES; ci++)
            if (find_compute(gpu, gi, ci) == NULL)
                hide(gpu, gi, ci, ci_cap(gpu, gi, ci));
        if (find_instance(gpu, gi) == NULL)
            hide(gpu, gi, NO_COMPUTE, gi_cap(gpu, gi));
    }
}
