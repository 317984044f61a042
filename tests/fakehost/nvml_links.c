/* The simulated libnvidia-ml.so.1: how GPUs are connected.
 *
 * A GPU's NVLinks are numbered: those to GPUs, in their order, then those to an NVSwitch, then some that are down.
 * Out of scope: what goes over them.
 */
#include <stdio.h>
#include <string.h>

#include "nvml.h"

#define LINKS 18          /* of each GPU that has any, up or down */
#define LEVEL_SYSTEM 50   /* NVML_TOPOLOGY_SYSTEM */
#define SWITCH_BUS 0xc0

/* What is at the other end of a GPU's link: a GPU, or NULL and 1 for the switch, or NULL and 0 for nothing. */
static const struct gpu *far_end(const struct gpu *gpu, unsigned link, int *is_switch)
{
    *is_switch = 0;
    for (int i = 0; i < host.gpu_count; i++) {
        unsigned count = gpu->links[host.gpus[i].number];
        if (link < count)
            return &host.gpus[i];
        link -= count;
    }
    *is_switch = link < gpu->switched;
    return NULL;
}

static result check_link(const struct gpu *gpu, unsigned link)
{
    int linked = gpu->switched;
    if (host.fail_links)
        return host.fail_links;
    for (int i = 0; i < MAX_GPUS; i++)
        linked += gpu->links[i];
    if (linked == 0)
        return NOT_SUPPORTED;
    return link < LINKS ? OK : INVALID_ARGUMENT;
}

EXPORT result nvmlDeviceGetTopologyCommonAncestor(device one, device other, unsigned *level)
{
    NEED_GPU(gpu, one, level)
    struct gpu *peer = as_gpu(other);
    if (peer == NULL)
        return INVALID_ARGUMENT;
    if (host.fail_links)
        return host.fail_links;
    *level = gpu->near[peer->number] ? gpu->near[peer->number] - 1u : LEVEL_SYSTEM;
    return OK;
}

EXPORT result nvmlDeviceGetNvLinkState(device handle, unsigned link, unsigned *active)
{
    int is_switch;
    NEED_GPU(gpu, handle, active)
    result failed = check_link(gpu, link);
    if (failed)
        return failed;
    *active = far_end(gpu, link, &is_switch) != NULL || is_switch;
    return OK;
}

EXPORT result nvmlDeviceGetNvLinkRemotePciInfo_v2(device handle, unsigned link, pci_info_v3 *info)
{
    int is_switch;
    NEED_GPU(gpu, handle, info)
    result failed = check_link(gpu, link);
    if (failed)
        return failed;
    const struct gpu *peer = far_end(gpu, link, &is_switch);
    if (peer == NULL && !is_switch)
        return NOT_SUPPORTED;
    memset(info, 0, sizeof *info);
    info->domain = peer ? peer->domain : 0;
    info->bus = peer ? peer->bus : SWITCH_BUS;
    info->device = peer ? peer->device : 0;
    snprintf(info->bus_id, sizeof info->bus_id, "%08X:%02X:%02X.0", info->domain, info->bus, info->device);
    return OK;
}

/* Of nvmlGpuFabricInfo_t. */
typedef struct {
    unsigned char cluster[16];
    unsigned status, clique;
    unsigned char state;
} fabric_info;

EXPORT result nvmlDeviceGetGpuFabricInfo(device handle, fabric_info *info)
{
    static const unsigned char none[16];
    NEED_GPU(gpu, handle, info)
    memset(info, 0, sizeof *info);
    const struct gpu *live = live_gpu(gpu);
    if (live && live->fabric_state) {
        info->state = live->fabric_state;
        info->status = live->fabric_status;
        return OK;
    }
    if (memcmp(gpu->cluster, none, sizeof none) == 0)
        return OK; /* state 0: not supported */
    memcpy(info->cluster, gpu->cluster, sizeof info->cluster);
    info->clique = gpu->clique;
    info->state = 3; /* completed */
    return OK;
}
