/* The simulated libnvidia-ml.so.1: profiles, making and removing of compute instances, each of which is a MIG device.
 *
 * Their profiles follow from the GPU instance's slices, as nvidia-smi mig -lcip lists them. Out of scope: profiles
 * with media or NVLink of their own.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "nvml_mig.h"

#define VERSION_2 0x02000088u
#define KINDS 9 /* NVML_COMPUTE_INSTANCE_PROFILE_COUNT */

/* Of nvmlComputeInstanceProfileInfo_t. */
typedef struct {
    unsigned id, slices, count, multiprocessors, copies, decoders, encoders, jpegs, ofas;
} profile_v1;

typedef struct {
    unsigned version, id, slices, count, multiprocessors, copies, decoders, encoders, jpegs, ofas;
    char name[96];
} profile_v2;

typedef struct {
    unsigned start, size;
} placement;

/* Slices of a kind of profile, which is also its id; 0 where this GPU instance has none of the kind. */
static unsigned kind_slices(const struct gpu *gpu, unsigned gi, unsigned kind)
{
    static const unsigned slices[KINDS] = {1, 2, 3, 4, 7};
    const struct instance *instance = find_instance(gpu, gi);
    unsigned all = compute_slices(gpu, instance), size = kind < KINDS ? slices[kind] : 0;
    return size > all || (size == 3 && all == 4) ? 0 : size;
}

static int begins(unsigned start, unsigned size, unsigned all)
{
    return start % (size == 3 ? 4 : size) == 0 && start + size <= all;
}

static void name_profile(const struct profile *profile, unsigned size, char *name, size_t room)
{
    if (size == profile->slices)
        snprintf(name, room, "%s", profile->name);
    else
        snprintf(name, room, "%uc.%s", size, profile->name);
}

static const struct profile *profile_of(const struct gpu *gpu, unsigned gi)
{
    return find_profile(gpu, find_instance(gpu, gi)->profile);
}

EXPORT result nvmlGpuInstanceGetComputeInstanceProfileInfoV(device handle, unsigned kind, unsigned engines,
                                                            profile_v2 *info)
{
    char name[90];
    NEED_INSTANCE(gpu, gi, handle, info)
    if (kind >= KINDS || engines != 0)
        return INVALID_ARGUMENT;
    if (info->version != VERSION_2)
        return ARGUMENT_VERSION_MISMATCH;
    unsigned size = kind_slices(gpu, gi, kind), count = 0;
    if (size == 0)
        return NOT_SUPPORTED;
    const struct profile *whole = profile_of(gpu, gi);
    for (unsigned start = 0; start < whole->slices; start++)
        count += begins(start, size, whole->slices);
    *info = (profile_v2){VERSION_2, kind, size, count, count_multiprocessors(gpu, whole, size), whole->copies,
                         whole->decoders, 0, whole->jpegs, whole->ofas, ""};
    name_profile(whole, size, name, sizeof name);
    snprintf(info->name, sizeof info->name, "MIG %s", name);
    return OK;
}

EXPORT result nvmlGpuInstanceGetComputeInstanceProfileInfo(device handle, unsigned kind, unsigned engines,
                                                           profile_v1 *info)
{
    profile_v2 full = {.version = VERSION_2};
    NEED_INSTANCE(gpu, gi, handle, info)
    result failed = nvmlGpuInstanceGetComputeInstanceProfileInfoV(handle, kind, engines, &full);
    if (failed)
        return failed;
    *info = (profile_v1){full.id, full.slices, full.count, full.multiprocessors, full.copies, full.decoders,
                         full.encoders, full.jpegs, full.ofas};
    return OK;
}

EXPORT result nvmlGpuInstanceGetComputeInstancePossiblePlacements(device handle, unsigned id, placement *out,
                                                                  unsigned *count)
{
    NEED_INSTANCE(gpu, gi, handle, count)
    unsigned size = kind_slices(gpu, gi, id);
    if (size == 0)
        return INVALID_ARGUMENT;
    *count = 0;
    for (unsigned start = 0; start < 8; start++) {
        if (!begins(start, size, profile_of(gpu, gi)->slices))
            continue;
        if (out)
            out[*count] = (placement){start, size};
        ++*count;
    }
    return OK;
}

EXPORT result nvmlGpuInstanceGetComputeInstanceRemainingCapacity(device handle, unsigned id, unsigned *count)
{
    NEED_INSTANCE(gpu, gi, handle, count)
    unsigned size = kind_slices(gpu, gi, id), used = used_computes(gpu, gi);
    if (size == 0)
        return INVALID_ARGUMENT;
    *count = 0;
    for (unsigned start = 0; start < 8; start++)
        *count += begins(start, size, profile_of(gpu, gi)->slices) && !(used & slice_bits(start, size));
    return OK;
}

/* One that is made again at the same place has another UUID. */
static void name_device(struct mig *mig)
{
    unsigned char bytes[16] = {0};
    char *text = mig->uuid + sprintf(mig->uuid, "MIG-");
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
        memcpy(bytes, &mig, sizeof mig);
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    for (int i = 0; i < 16; i++)
        text += sprintf(text, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", bytes[i]);
}

static result make(device handle, unsigned id, const placement *wanted, device *out)
{
    struct gpu *changing;
    NEED_INSTANCE(gpu, gi, handle, out)
    unsigned size = kind_slices(gpu, gi, id), start = wanted ? wanted->start : 0, ci = 0;
    if (size == 0 || (wanted && (wanted->size != size || !begins(start, size, profile_of(gpu, gi)->slices))))
        return INVALID_ARGUMENT;
    result failed = begin_change(gpu, &changing);
    if (failed)
        return failed;
    if (find_instance(changing, gi) == NULL) {
        end_change(changing, -1);
        return INVALID_ARGUMENT;
    }
    unsigned used = used_computes(changing, gi), all = profile_of(gpu, gi)->slices;
    while (!wanted && start < all && (!begins(start, size, all) || used & slice_bits(start, size)))
        start++;
    if (start >= all || used & slice_bits(start, size) || changing->mig_count == MAX_MIG) {
        end_change(changing, -1);
        return INSUFFICIENT_RESOURCES;
    }
    while (find_compute(changing, gi, ci))
        ci++;
    struct mig *made = &changing->migs[changing->mig_count++];
    const struct profile *whole = profile_of(gpu, gi);
    *made = (struct mig){changing, gi, ci, gi_cap(gpu, gi), ci_cap(gpu, gi, ci), "", "", start, size, whole->memory_mib};
    name_profile(whole, size, made->profile, sizeof made->profile);
    name_device(made);
    *out = instance_handle(gpu, gi, ci);
    return end_change(changing, 1);
}

EXPORT result nvmlGpuInstanceCreateComputeInstance(device handle, unsigned id, device *out)
{
    NEED_INIT
    NEED_FUNCTION
    return make(handle, id, NULL, out);
}

EXPORT result nvmlGpuInstanceCreateComputeInstanceWithPlacement(device handle, unsigned id, const placement *wanted,
                                                                device *out)
{
    NEED_INIT
    NEED_FUNCTION
    return wanted ? make(handle, id, wanted, out) : INVALID_ARGUMENT;
}

EXPORT result nvmlComputeInstanceDestroy(device handle)
{
    struct gpu *changing;
    NEED_HANDLE(gpu, gi, ci, handle, handle)
    if (ci == NO_COMPUTE)
        return INVALID_ARGUMENT;
    result failed = begin_change(gpu, &changing);
    if (failed)
        return failed;
    struct mig *gone = (struct mig *)find_compute(changing, gi, ci);
    if (gone == NULL || in_use(changing, gone->uuid)) {
        end_change(changing, -1);
        return gone ? IN_USE : INVALID_ARGUMENT;
    }
    changing->mig_count--;
    memmove(gone, gone + 1, (char *)&changing->migs[changing->mig_count] - (char *)gone);
    return end_change(changing, 0);
}

static unsigned kind_of(unsigned size)
{
    return size == 7 ? 4 : size - 1;
}

EXPORT result nvmlGpuInstanceGetComputeInstances(device handle, unsigned id, device *out, unsigned *count)
{
    NEED_INSTANCE(gpu, gi, handle, count)
    if (out == NULL || kind_slices(gpu, gi, id) == 0)
        return INVALID_ARGUMENT;
    *count = 0;
    for (int i = 0; i < gpu->mig_count; i++)
        if (gpu->migs[i].gi == gi && kind_of(gpu->migs[i].size) == id)
            out[(*count)++] = instance_handle(gpu, gi, gpu->migs[i].ci);
    return OK;
}

EXPORT result nvmlGpuInstanceGetComputeInstanceById(device handle, unsigned id, device *out)
{
    NEED_INSTANCE(gpu, gi, handle, out)
    if (find_compute(gpu, gi, id) == NULL)
        return NOT_FOUND;
    *out = instance_handle(gpu, gi, id);
    return OK;
}

/* Of nvmlComputeInstanceInfo_t. */
typedef struct {
    device device, instance;
    unsigned id, profile, start, size;
} compute_info;

EXPORT result nvmlComputeInstanceGetInfo_v2(device handle, compute_info *info)
{
    NEED_HANDLE(gpu, gi, ci, handle, info)
    if (ci == NO_COMPUTE)
        return INVALID_ARGUMENT;
    const struct mig *mig = find_compute(gpu, gi, ci);
    *info = (compute_info){gpu, instance_handle(gpu, gi, NO_COMPUTE), ci, kind_of(mig->size), mig->start, mig->size};
    return OK;
}
