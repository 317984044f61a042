/* The simulated libnvidia-ml.so.1: which GPU and compute instances there are, and their handles.
 *
 * A handle is a place of its GPU's by the ids of the instance: of one that goes and comes again it is the same. A
 * table that has MIG devices only does not say where they lie; they get the first places that are free. Out of
 * scope: changes.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "nvml_mig.h"

#define FIRST_CAP 3 /* as in gpus.py */

int gi_cap(const struct gpu *gpu, unsigned gi)
{
    return FIRST_CAP + (gpu->minor * MAX_INSTANCES + (int)gi) * (1 + MAX_COMPUTES);
}

int ci_cap(const struct gpu *gpu, unsigned gi, unsigned ci)
{
    return gi_cap(gpu, gi) + 1 + (int)ci;
}

const struct instance *find_instance(const struct gpu *gpu, unsigned gi)
{
    for (int i = 0; i < gpu->instance_count; i++)
        if (gpu->instances[i].gi == gi)
            return &gpu->instances[i];
    return NULL;
}

const struct mig *find_compute(const struct gpu *gpu, unsigned gi, unsigned ci)
{
    for (int i = 0; i < gpu->mig_count; i++)
        if (gpu->migs[i].gi == gi && gpu->migs[i].ci == ci)
            return &gpu->migs[i];
    return NULL;
}

device instance_handle(struct gpu *gpu, unsigned gi, unsigned ci)
{
    return &gpu->places[gi][ci == NO_COMPUTE ? 0 : 1 + ci];
}

struct gpu *handle_instance(device handle, unsigned *gi, unsigned *ci)
{
    for (unsigned i = 0; i < gpu_count; i++) {
        char *first = gpus[i]->places[0], *place = handle;
        if (place < first || place >= first + sizeof gpus[i]->places)
            continue;
        unsigned number = place - first, column = number % (1 + MAX_COMPUTES);
        *gi = number / (1 + MAX_COMPUTES);
        *ci = column ? column - 1 : NO_COMPUTE;
        renew_migs(gpus[i]);
        return (column ? (void *)find_compute(gpus[i], *gi, *ci) : (void *)find_instance(gpus[i], *gi)) ? gpus[i] : NULL;
    }
    return NULL;
}

static void read_name(const struct mig *mig, unsigned *compute, unsigned *slices, unsigned *gib)
{
    *compute = *slices = *gib = 0;
    if (sscanf(mig->profile, "%uc.%ug.%ugb", compute, slices, gib) != 3) {
        sscanf(mig->profile, "%ug.%ugb", slices, gib);
        *compute = *slices;
    }
}

unsigned used_computes(const struct gpu *gpu, unsigned gi)
{
    unsigned used = 0;
    for (int i = 0; i < gpu->mig_count; i++)
        if (gpu->migs[i].gi == gi)
            used |= slice_bits(gpu->migs[i].start, gpu->migs[i].size);
    return used;
}

unsigned compute_slices(const struct gpu *gpu, const struct instance *instance)
{
    const struct profile *profile = find_profile(gpu, instance->profile);
    return profile ? profile->slices : 0;
}

/* The instance of a MIG device: where its profile has room, else behind the others, as large as its name says. */
static void add_instance(struct gpu *gpu, const struct mig *mig)
{
    unsigned compute, slices, gib, used = used_slices(gpu), start = 0;
    const struct profile *profile = named_profile(gpu, mig->profile);
    struct instance *made = &gpu->instances[gpu->instance_count];
    *made = (struct instance){gpu, mig->gi, NO_COMPUTE, 0, 0};
    while (profile && start < 8 && (!(profile->starts >> start & 1) || used & slice_bits(start, profile->size)))
        start++;
    if (profile)
        made->profile = profile->id;
    if (profile && start < 8) {
        made->start = start;
        made->size = profile->size;
    } else {
        read_name(mig, &compute, &slices, &gib);
        for (int i = 0; i < gpu->instance_count; i++)
            if (gpu->instances[i].start + gpu->instances[i].size > made->start)
                made->start = gpu->instances[i].start + gpu->instances[i].size;
        made->size = gpu->memory_mib ? (gib * 8192ull + gpu->memory_mib - 1) / gpu->memory_mib : 0;
    }
    gpu->instance_count++;
}

void find_instances(struct gpu *gpu)
{
    for (int i = 0; i < gpu->mig_count; i++) {
        struct mig *mig = &gpu->migs[i];
        unsigned compute, slices, gib;
        if (find_instance(gpu, mig->gi) == NULL && gpu->instance_count < MAX_INSTANCES)
            add_instance(gpu, mig);
        if (mig->size)
            continue;
        read_name(mig, &compute, &slices, &gib);
        unsigned used = used_computes(gpu, mig->gi);
        for (mig->start = 0; used & slice_bits(mig->start, compute);)
            mig->start++;
        mig->size = compute;
    }
}

EXPORT result nvmlDeviceGetGpuInstanceById(device handle, unsigned id, device *out)
{
    NEED_GPU(gpu, handle, out)
    NEED_ROOT
    renew_migs(gpu);
    if (find_instance(gpu, id) == NULL)
        return NOT_FOUND;
    *out = instance_handle(gpu, id, NO_COMPUTE);
    return OK;
}

EXPORT result nvmlDeviceGetGpuInstances(device handle, unsigned id, device *out, unsigned *count)
{
    NEED_GPU(gpu, handle, count)
    NEED_FUNCTION
    NEED_ROOT
    renew_migs(gpu);
    if (gpu->mig_current != 1)
        return NOT_SUPPORTED;
    if (out == NULL || find_profile(gpu, id) == NULL)
        return INVALID_ARGUMENT;
    *count = 0;
    for (int i = 0; i < gpu->instance_count; i++)
        if (gpu->instances[i].profile == id)
            out[(*count)++] = instance_handle(gpu, gpu->instances[i].gi, NO_COMPUTE);
    return OK;
}

/* Of nvmlGpuInstanceInfo_t. */
typedef struct {
    device device;
    unsigned id, profile, start, size;
} instance_info;

EXPORT result nvmlGpuInstanceGetInfo(device handle, instance_info *info)
{
    NEED_INSTANCE(gpu, gi, handle, info)
    const struct instance *instance = find_instance(gpu, gi);
    *info = (instance_info){gpu, gi, instance->profile, instance->start, instance->size};
    return OK;
}
