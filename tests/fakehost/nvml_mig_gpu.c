/* The simulated libnvidia-ml.so.1: profiles, placements, making and removing of GPU instances. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "nvml_mig.h"

#define VERSION_2 0x02000098u

/* Of nvmlGpuInstanceProfileInfo_t. */
typedef struct {
    unsigned id, p2p, slices, count, multiprocessors, copies, decoders, encoders, jpegs, ofas;
    unsigned long long memory_mib;
} profile_v1;

typedef struct {
    unsigned version, id, p2p, slices, count, multiprocessors, copies, decoders, encoders, jpegs, ofas;
    unsigned long long memory_mib;
    char name[96];
} profile_v2;

typedef struct {
    unsigned start, size;
} placement;

static void describe(const struct profile *profile, profile_v2 *info)
{
    *info = (profile_v2){VERSION_2, profile->id, 0, profile->slices, profile->count, profile->multiprocessors,
                         profile->copies, profile->decoders, 0, profile->jpegs, profile->ofas, profile->memory_mib, ""};
    snprintf(info->name, sizeof info->name, "MIG %s", profile->name);
}

static const struct profile *kind_of_profile(const struct gpu *gpu, unsigned kind)
{
    const struct model *model = find_model(gpu);
    for (int i = 0; model && i < model->profile_count; i++)
        if (model->profiles[i].kind == kind)
            return &model->profiles[i];
    return NULL;
}

#define KINDS 0x12 /* NVML_GPU_INSTANCE_PROFILE_COUNT */
#define NEED_MIG(gpu)             \
    renew_migs(gpu);              \
    if (gpu->mig_current < 0)     \
        return NOT_SUPPORTED;

EXPORT result nvmlDeviceGetGpuInstanceProfileInfoV(device handle, unsigned kind, profile_v2 *info)
{
    NEED_GPU(gpu, handle, info)
    NEED_FUNCTION
    NEED_MIG(gpu)
    if (kind >= KINDS)
        return INVALID_ARGUMENT;
    if (info->version != VERSION_2)
        return ARGUMENT_VERSION_MISMATCH;
    const struct profile *profile = kind_of_profile(gpu, kind);
    if (profile == NULL)
        return NOT_SUPPORTED;
    describe(profile, info);
    return OK;
}

EXPORT result nvmlDeviceGetGpuInstanceProfileInfo(device handle, unsigned kind, profile_v1 *info)
{
    profile_v2 full = {.version = VERSION_2};
    NEED_GPU(gpu, handle, info)
    result failed = nvmlDeviceGetGpuInstanceProfileInfoV(gpu, kind, &full);
    if (failed)
        return failed;
    *info = (profile_v1){full.id, full.p2p, full.slices, full.count, full.multiprocessors, full.copies,
                         full.decoders, full.encoders, full.jpegs, full.ofas, full.memory_mib};
    return OK;
}

EXPORT result nvmlDeviceGetGpuInstanceProfileInfoByIdV(device handle, unsigned id, profile_v2 *info)
{
    NEED_GPU(gpu, handle, info)
    NEED_MIG(gpu)
    if (info->version != VERSION_2)
        return ARGUMENT_VERSION_MISMATCH;
    const struct profile *profile = find_profile(gpu, id);
    if (profile == NULL)
        return INVALID_ARGUMENT;
    describe(profile, info);
    return OK;
}

EXPORT result nvmlDeviceGetGpuInstancePossiblePlacements_v2(device handle, unsigned id, placement *out, unsigned *count)
{
    NEED_GPU(gpu, handle, count)
    NEED_FUNCTION
    NEED_MIG(gpu)
    NEED_ROOT
    const struct profile *profile = find_profile(gpu, id);
    if (profile == NULL)
        return INVALID_ARGUMENT;
    *count = 0;
    for (unsigned start = 0; start < 8; start++) {
        if (!(profile->starts >> start & 1))
            continue;
        if (out)
            out[*count] = (placement){start, profile->size};
        ++*count;
    }
    return OK;
}

EXPORT result nvmlDeviceGetGpuInstancePossiblePlacements(device handle, unsigned id, placement *out, unsigned *count)
{
    return nvmlDeviceGetGpuInstancePossiblePlacements_v2(handle, id, out, count);
}

static int is_free(const struct profile *profile, unsigned start, unsigned used)
{
    return start < 8 && profile->starts >> start & 1 && !(used & slice_bits(start, profile->size));
}

EXPORT result nvmlDeviceGetGpuInstanceRemainingCapacity(device handle, unsigned id, unsigned *count)
{
    NEED_GPU(gpu, handle, count)
    NEED_FUNCTION
    NEED_MIG(gpu)
    NEED_ROOT
    const struct profile *profile = find_profile(gpu, id);
    if (gpu->mig_current != 1)
        return NOT_SUPPORTED;
    if (profile == NULL)
        return INVALID_ARGUMENT;
    struct gpu filled = *gpu;
    for (unsigned start = 0; start < 8; start++)
        if (is_free(profile, start, used_slices(&filled)) && fits(&filled, profile))
            filled.instances[filled.instance_count++] = (struct instance){gpu, 0, id, start, profile->size};
    *count = filled.instance_count - gpu->instance_count;
    return OK;
}

/* How many (profile, placement) pairs are left. */
static int count_choices(const struct model *model, unsigned used)
{
    int count = 0;
    for (int i = 0; i < model->profile_count; i++)
        for (unsigned start = 0; start < 8; start++)
            count += is_free(&model->profiles[i], start, used);
    return count;
}

/* The driver chooses what leaves most: the first small instance lies at the end, and so does the first half. */
static unsigned choose_start(const struct gpu *gpu, const struct profile *profile)
{
    unsigned used = used_slices(gpu), chosen = 8;
    int most = -1;
    for (unsigned start = 0; start < 8; start++) {
        if (!is_free(profile, start, used))
            continue;
        int left = count_choices(find_model(gpu), used | slice_bits(start, profile->size));
        if (left > most) {
            most = left;
            chosen = start;
        }
    }
    return chosen;
}

/* A GPU's whole has id 0, its halves 1 and 2, its quarters 3 to 6, its eighths from 7 on. */
static unsigned choose_id(const struct gpu *gpu, const struct profile *profile, unsigned start)
{
    unsigned id = find_model(gpu)->memory_slices / profile->size - 1 + start / profile->size;
    while (find_instance(gpu, id)) /* one of a table has it that numbers otherwise */
        id = (id + 1) % MAX_INSTANCES;
    return id;
}

static result make(device handle, unsigned id, const placement *wanted, device *out)
{
    struct gpu *changing;
    NEED_GPU(gpu, handle, out)
    NEED_MIG(gpu)
    const struct profile *profile = find_profile(gpu, id);
    if (gpu->mig_current != 1)
        return NOT_SUPPORTED;
    if (profile == NULL || (wanted && (wanted->size != profile->size || !is_free(profile, wanted->start, 0))))
        return INVALID_ARGUMENT;
    result failed = begin_change(gpu, &changing);
    if (failed)
        return failed;
    unsigned start = wanted ? wanted->start : choose_start(changing, profile);
    if (!is_free(profile, start, used_slices(changing)) || !fits(changing, profile) || changing->mig_current != 1) {
        end_change(changing, -1);
        return INSUFFICIENT_RESOURCES;
    }
    unsigned gi = choose_id(changing, profile, start);
    changing->instances[changing->instance_count++] =
        (struct instance){changing, gi, id, start, profile->size};
    *out = instance_handle(gpu, gi, NO_COMPUTE);
    return end_change(changing, 1);
}

EXPORT result nvmlDeviceCreateGpuInstance(device handle, unsigned id, device *out)
{
    NEED_INIT
    NEED_FUNCTION
    return make(handle, id, NULL, out);
}

EXPORT result nvmlDeviceCreateGpuInstanceWithPlacement(device handle, unsigned id, const placement *wanted, device *out)
{
    NEED_INIT
    NEED_FUNCTION
    return wanted ? make(handle, id, wanted, out) : INVALID_ARGUMENT;
}

EXPORT result nvmlGpuInstanceDestroy(device handle)
{
    struct gpu *changing;
    NEED_INSTANCE(gpu, gi, handle, handle)
    result failed = begin_change(gpu, &changing);
    if (failed)
        return failed;
    struct instance *gone = (struct instance *)find_instance(changing, gi);
    int computes = 0;
    for (int i = 0; i < changing->mig_count; i++)
        computes += changing->migs[i].gi == gi;
    if (gone == NULL || computes) {
        end_change(changing, -1);
        return computes ? IN_USE : INVALID_ARGUMENT;
    }
    changing->instance_count--;
    memmove(gone, gone + 1, (char *)&changing->instances[changing->instance_count] - (char *)gone);
    return end_change(changing, 0);
}
