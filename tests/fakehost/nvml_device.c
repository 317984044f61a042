/* The simulated libnvidia-ml.so.1, second half: what it tells about a GPU or a MIG device.
 *
 * Questions about the PCI bus, the node or MIG mode take a GPU's handle only.
 */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "nvml_mig.h"

EXPORT result nvmlDeviceGetName(device handle, char *name, unsigned size)
{
    char text[160];
    NEED_EITHER(gpu, mig, handle, name)
    if (mig == NULL)
        return copy_text(name, size, gpu->model);
    snprintf(text, sizeof text, "%s MIG %s", gpu->model, mig->profile);
    return copy_text(name, size, text);
}

EXPORT result nvmlDeviceGetUUID(device handle, char *uuid, unsigned size)
{
    NEED_EITHER(gpu, mig, handle, uuid)
    return copy_text(uuid, size, mig ? mig->uuid : gpu->uuid);
}

/* A MIG device's index counts within its GPU. */
EXPORT result nvmlDeviceGetIndex(device handle, unsigned *index)
{
    NEED_EITHER(gpu, mig, handle, index)
    for (*index = 0; mig == NULL && gpus[*index] != gpu;)
        ++*index;
    if (mig)
        *index = mig - gpu->migs;
    return OK;
}

EXPORT result nvmlDeviceGetMinorNumber(device handle, unsigned *minor)
{
    NEED_GPU(gpu, handle, minor)
    *minor = gpu->minor;
    return OK;
}

EXPORT result nvmlDeviceGetPciInfo_v3(device handle, pci_info_v3 *info)
{
    NEED_GPU(gpu, handle, info)
    memset(info, 0, sizeof *info);
    info->domain = gpu->domain;
    info->bus = gpu->bus;
    info->device = gpu->device;
    info->pci_device_id = gpu->device_id << 16 | 0x10de;
    snprintf(info->bus_id_legacy, sizeof info->bus_id_legacy, "%04X:%02X:%02X.0", gpu->domain & 0xffff,
             gpu->bus & 0xff, gpu->device & 0xff);
    snprintf(info->bus_id, sizeof info->bus_id, "%08X:%02X:%02X.0", gpu->domain, gpu->bus, gpu->device);
    return OK;
}

EXPORT result nvmlDeviceGetPciInfo_v2(device handle, pci_info_v2 *info)
{
    pci_info_v3 full;
    NEED_GPU(gpu, handle, info)
    nvmlDeviceGetPciInfo_v3(gpu, &full);
    memset(info, 0, sizeof *info);
    memcpy(info, &full, offsetof(pci_info_v3, bus_id));
    return OK;
}

EXPORT result nvmlDeviceGetPciInfo(device handle, pci_info_v2 *info)
{
    return nvmlDeviceGetPciInfo_v2(handle, info);
}

EXPORT result nvmlDeviceGetBrand(device handle, unsigned *brand)
{
    NEED_EITHER(gpu, mig, handle, brand)
    (void)mig;
    *brand = gpu->brand;
    return OK;
}

EXPORT result nvmlDeviceGetVirtualizationMode(device handle, unsigned *mode)
{
    NEED_GPU(gpu, handle, mode)
    *mode = gpu->brand >= 7 && gpu->brand <= 11 ? 2 : 0; /* brands of vGPUs: NVML_GPU_VIRTUALIZATION_MODE_VGPU */
    return OK;
}

EXPORT result nvmlDeviceGetCudaComputeCapability(device handle, int *major, int *minor)
{
    NEED_EITHER(gpu, mig, handle, minor)
    NEED_FUNCTION
    if (major == NULL)
        return INVALID_ARGUMENT;
    (void)mig;
    *major = gpu->arch_major;
    *minor = gpu->arch_minor;
    return OK;
}

/* The "3g.20gb" or "1c.3g.20gb" of a MIG device as numbers. */
static void read_profile(const struct mig *mig, unsigned *compute, unsigned *slices, unsigned *gib)
{
    *compute = *slices = *gib = 0;
    if (sscanf(mig->profile, "%uc.%ug.%ugb", compute, slices, gib) != 3) {
        sscanf(mig->profile, "%ug.%ugb", slices, gib);
        *compute = *slices;
    }
}

static unsigned long long total_memory(const struct gpu *gpu, const struct mig *mig)
{
    unsigned compute, slices, gib;
    if (mig == NULL)
        return gpu->memory_mib << 20;
    read_profile(mig, &compute, &slices, &gib);
    return mig->memory_mib ? (unsigned long long)mig->memory_mib << 20 : (unsigned long long)gib << 30;
}

EXPORT result nvmlDeviceGetMemoryInfo(device handle, memory_v1 *memory)
{
    NEED_EITHER(gpu, mig, handle, memory)
    if (gpu->memory_mib == 0) /* a GB10: the system's memory is its own */
        return NOT_SUPPORTED;
    unsigned long long reserved;
    memory->total = total_memory(gpu, mig);
    figure(gpu, mig, "memory_used", &memory->used);
    figure(gpu, mig, "memory_reserved", &reserved);
    memory->used += reserved;
    memory->free = memory->total - memory->used;
    return OK;
}

EXPORT result nvmlDeviceGetMemoryInfo_v2(device handle, memory_v2 *memory)
{
    NEED_EITHER(gpu, mig, handle, memory)
    if (gpu->memory_mib == 0) /* a GB10: the system's memory is its own */
        return NOT_SUPPORTED;
    memory->total = total_memory(gpu, mig);
    figure(gpu, mig, "memory_used", &memory->used);
    figure(gpu, mig, "memory_reserved", &memory->reserved);
    memory->free = memory->total - memory->used - memory->reserved;
    return OK;
}

EXPORT result nvmlDeviceGetMigMode(device handle, unsigned *current, unsigned *pending)
{
    NEED_GPU(gpu, handle, current)
    if (pending == NULL)
        return INVALID_ARGUMENT;
    renew_migs(gpu);
    if (gpu->mig_current < 0)
        return NOT_SUPPORTED;
    *current = gpu->mig_current;
    *pending = gpu->mig_pending;
    return OK;
}

EXPORT result nvmlDeviceGetMaxMigDeviceCount(device handle, unsigned *count)
{
    NEED_GPU(gpu, handle, count)
    renew_migs(gpu);
    const struct model *model = find_model(gpu);
    *count = gpu->mig_current == 1 ? model ? model->profiles[0].count : MAX_MIG : 0;
    return OK;
}

EXPORT result nvmlDeviceGetMigDeviceHandleByIndex(device handle, unsigned index, device *out)
{
    NEED_GPU(gpu, handle, out)
    renew_migs(gpu);
    if (gpu->mig_current < 0)
        return NOT_SUPPORTED;
    if (index >= MAX_MIG)
        return INVALID_ARGUMENT;
    if ((int)index >= gpu->mig_count)
        return NOT_FOUND;
    return give(gpu, &gpu->migs[index], out);
}

EXPORT result nvmlDeviceIsMigDeviceHandle(device handle, unsigned *answer)
{
    NEED_EITHER(gpu, mig, handle, answer)
    *answer = mig != NULL;
    return OK;
}

static result mig_number(device handle, unsigned *out, int want_compute)
{
    NEED_EITHER(gpu, mig, handle, out)
    (void)gpu;
    if (mig == NULL)
        return INVALID_ARGUMENT;
    *out = want_compute ? mig->ci : mig->gi;
    return OK;
}

EXPORT result nvmlDeviceGetGpuInstanceId(device handle, unsigned *id)
{
    return mig_number(handle, id, 0);
}

EXPORT result nvmlDeviceGetComputeInstanceId(device handle, unsigned *id)
{
    return mig_number(handle, id, 1);
}

EXPORT result nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device handle, device *out)
{
    NEED_EITHER(gpu, mig, handle, out)
    if (mig == NULL)
        return INVALID_ARGUMENT;
    return give(gpu, gpu, out);
}

EXPORT result nvmlDeviceGetAttributes_v2(device handle, attributes *out)
{
    unsigned compute, slices, gib;
    NEED_EITHER(gpu, mig, handle, out)
    (void)gpu;
    if (mig == NULL)
        return NOT_SUPPORTED;
    read_profile(mig, &compute, &slices, &gib);
    memset(out, 0, sizeof *out);
    if (mig->memory_mib) {
        const struct profile *profile = named_profile(gpu, mig->profile);
        *out = (attributes){count_multiprocessors(gpu, profile, compute), profile->copies, profile->decoders, 0,
                            profile->jpegs, profile->ofas, slices, compute, mig->memory_mib};
        return OK;
    }
    out->multiprocessors = 14 * compute; /* an A100's SMs per slice */
    out->copy_engines = out->gpu_slices = slices;
    out->compute_slices = compute;
    out->memory_mib = gib * 1024ull;
    return OK;
}

/* Of nvmlDeviceAddressingMode_v1_t. */
typedef struct {
    unsigned version, value;
} addressing;

EXPORT result nvmlDeviceGetAddressingMode(device handle, addressing *out)
{
    unsigned long long value;
    NEED_GPU(gpu, handle, out)
    if (!figure(gpu, NULL, "addressing", &value))
        return NOT_SUPPORTED;
    out->value = value;
    return OK;
}

EXPORT result nvmlDeviceGetAttributes(device handle, attributes *out)
{
    return nvmlDeviceGetAttributes_v2(handle, out);
}
