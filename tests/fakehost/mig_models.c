/* GPU instance profiles and placements of the models that can be divided.
 *
 * Names, counts, engines of video: NVIDIA's Multi-Instance GPU User Guide, "Supported MIG Profiles"
 * (docs.nvidia.com/datacenter/tesla/mig-user-guide/supported-mig-profiles.html). Ids, placements, multiprocessors and
 * memory: what nvidia-smi mig -lgip and -lgipp print of these models, in that guide ("Getting Started with MIG") and in
 * the pull requests of NVIDIA/mig-parted that added them. Multiprocessors and memory of B200's three largest are
 * worked out from its fractions. Out of scope: models that nobody tests with, and profiles with graphics.
 */
#include <stdio.h>
#include <string.h>

#include "nvml_mig.h"

enum { ONE, TWO, THREE, FOUR, SEVEN, ONE_MEDIA = 7, TWO_MEDIA, ONE_WIDE };

#define ANY_1 0x7f /* {0,1,2,3,4,5,6}:1 */
#define WIDE 0x55  /* {0,2,4,6}:2 */
#define PAIRS 0x15 /* {0,2,4}:2 */
#define HALVES 0x11
#define FIRST 0x01

static const struct profile a100_40[] = {
    {ONE, 19, "1g.5gb", 1, 7, 14, 1, 0, 0, 0, 4864, 1, ANY_1},
    {ONE_MEDIA, 20, "1g.5gb+me", 1, 1, 14, 1, 1, 1, 1, 4864, 1, ANY_1},
    {ONE_WIDE, 15, "1g.10gb", 1, 4, 14, 1, 1, 0, 0, 9856, 2, WIDE},
    {TWO, 14, "2g.10gb", 2, 3, 28, 2, 1, 0, 0, 9856, 2, PAIRS},
    {THREE, 9, "3g.20gb", 3, 2, 42, 3, 2, 0, 0, 19968, 4, HALVES},
    {FOUR, 5, "4g.20gb", 4, 1, 56, 4, 2, 0, 0, 19968, 4, FIRST},
    {SEVEN, 0, "7g.40gb", 7, 1, 98, 7, 5, 1, 1, 40192, 8, FIRST},
};
static const struct profile a100_80[] = {
    {ONE, 19, "1g.10gb", 1, 7, 14, 1, 0, 0, 0, 9728, 1, ANY_1},
    {ONE_MEDIA, 20, "1g.10gb+me", 1, 1, 14, 1, 1, 1, 1, 9728, 1, ANY_1},
    {ONE_WIDE, 15, "1g.20gb", 1, 4, 14, 1, 1, 0, 0, 19968, 2, WIDE},
    {TWO, 14, "2g.20gb", 2, 3, 28, 2, 1, 0, 0, 19968, 2, PAIRS},
    {THREE, 9, "3g.40gb", 3, 2, 42, 3, 2, 0, 0, 40192, 4, HALVES},
    {FOUR, 5, "4g.40gb", 4, 1, 56, 4, 2, 0, 0, 40192, 4, FIRST},
    {SEVEN, 0, "7g.80gb", 7, 1, 98, 7, 5, 1, 1, 80384, 8, FIRST},
};
static const struct profile a30[] = {
    {ONE, 14, "1g.6gb", 1, 4, 14, 1, 0, 0, 0, 5952, 1, 0x0f},
    {ONE_MEDIA, 21, "1g.6gb+me", 1, 1, 14, 1, 1, 1, 1, 5952, 1, 0x0f},
    {TWO, 5, "2g.12gb", 2, 2, 28, 2, 2, 0, 0, 11968, 2, 0x05},
    {TWO_MEDIA, 6, "2g.12gb+me", 2, 1, 28, 2, 2, 1, 1, 11968, 2, 0x05},
    {FOUR, 0, "4g.24gb", 4, 1, 56, 4, 4, 1, 1, 24000, 4, FIRST},
};
static const struct profile h100_80[] = {
    {ONE, 19, "1g.10gb", 1, 7, 16, 1, 1, 1, 0, 9984, 1, ANY_1},
    {ONE_MEDIA, 20, "1g.10gb+me", 1, 1, 16, 1, 1, 1, 1, 9984, 1, ANY_1},
    {ONE_WIDE, 15, "1g.20gb", 1, 4, 26, 1, 1, 1, 0, 20096, 2, WIDE},
    {TWO, 14, "2g.20gb", 2, 3, 32, 2, 2, 2, 0, 20096, 2, PAIRS},
    {THREE, 9, "3g.40gb", 3, 2, 60, 3, 3, 3, 0, 40448, 4, HALVES},
    {FOUR, 5, "4g.40gb", 4, 1, 64, 4, 4, 4, 0, 40448, 4, FIRST},
    {SEVEN, 0, "7g.80gb", 7, 1, 132, 8, 7, 7, 1, 81152, 8, FIRST},
};
static const struct profile h200[] = {
    {ONE, 19, "1g.18gb", 1, 7, 16, 1, 1, 1, 0, 16384, 1, ANY_1},
    {ONE_MEDIA, 20, "1g.18gb+me", 1, 1, 16, 1, 1, 1, 1, 16384, 1, ANY_1},
    {ONE_WIDE, 15, "1g.35gb", 1, 4, 26, 1, 1, 1, 0, 33024, 2, WIDE},
    {TWO, 14, "2g.35gb", 2, 3, 32, 2, 2, 2, 0, 33024, 2, PAIRS},
    {THREE, 9, "3g.71gb", 3, 2, 60, 3, 3, 3, 0, 71168, 4, HALVES},
    {FOUR, 5, "4g.71gb", 4, 1, 64, 4, 4, 4, 0, 71168, 4, FIRST},
    {SEVEN, 0, "7g.141gb", 7, 1, 132, 8, 7, 7, 1, 143104, 8, FIRST},
};
static const struct profile b200[] = {
    {ONE, 19, "1g.23gb", 1, 7, 18, 2, 1, 1, 0, 20992, 1, ANY_1},
    {ONE_MEDIA, 20, "1g.23gb+me", 1, 1, 18, 2, 1, 1, 1, 20992, 1, ANY_1},
    {ONE_WIDE, 15, "1g.45gb", 1, 4, 30, 2, 1, 1, 0, 45312, 2, WIDE},
    {TWO, 14, "2g.45gb", 2, 3, 36, 4, 2, 2, 0, 45312, 2, PAIRS},
    {THREE, 9, "3g.90gb", 3, 2, 64, 6, 3, 3, 0, 91136, 4, HALVES},
    {FOUR, 5, "4g.90gb", 4, 1, 72, 8, 4, 4, 0, 91136, 4, FIRST},
    {SEVEN, 0, "7g.180gb", 7, 1, 148, 16, 7, 7, 1, 182784, 8, FIRST},
};

#define ALL(profiles) profiles, sizeof profiles / sizeof *profiles

static const struct model models[] = {
    {8, 24000, 24999, 4, ALL(a30)},     {8, 39000, 41000, 8, ALL(a100_40)}, {8, 79000, 82000, 8, ALL(a100_80)},
    {9, 79000, 82000, 8, ALL(h100_80)}, {9, 140000, 145000, 8, ALL(h200)},  {10, 178000, 185000, 8, ALL(b200)},
};

const struct model *find_model(const struct gpu *gpu)
{
    for (unsigned i = 0; i < sizeof models / sizeof *models; i++)
        if (models[i].arch_major == gpu->arch_major && models[i].least_mib <= gpu->memory_mib &&
            gpu->memory_mib <= models[i].most_mib)
            return &models[i];
    return NULL;
}

const struct profile *find_profile(const struct gpu *gpu, unsigned id)
{
    const struct model *model = find_model(gpu);
    for (int i = 0; model && i < model->profile_count; i++)
        if (model->profiles[i].id == id)
            return &model->profiles[i];
    return NULL;
}

const struct profile *named_profile(const struct gpu *gpu, const char *name)
{
    const struct model *model = find_model(gpu);
    unsigned compute;
    int used = 0;
    if (sscanf(name, "%uc.%n", &compute, &used) == 1 && used) /* 1c.3g.20gb: its GPU instance is a 3g.20gb */
        name += used;
    for (int i = 0; model && i < model->profile_count; i++)
        if (strcmp(model->profiles[i].name, name) == 0)
            return &model->profiles[i];
    return NULL;
}

unsigned used_slices(const struct gpu *gpu)
{
    unsigned used = 0;
    for (int i = 0; i < gpu->instance_count; i++)
        if (gpu->instances[i].start < 8)
            used |= slice_bits(gpu->instances[i].start, gpu->instances[i].size);
    return used;
}

unsigned count_multiprocessors(const struct gpu *gpu, const struct profile *profile, unsigned slices)
{
    return slices == profile->slices ? profile->multiprocessors : find_model(gpu)->profiles[0].multiprocessors * slices;
}

int fits(const struct gpu *gpu, const struct profile *profile)
{
    const struct model *model = find_model(gpu);
    const struct profile *all = &model->profiles[model->profile_count - 1];
    unsigned count = 1, decoders = profile->decoders, jpegs = profile->jpegs, ofas = profile->ofas;
    for (int i = 0; i < gpu->instance_count; i++) {
        const struct profile *other = find_profile(gpu, gpu->instances[i].profile);
        if (other == NULL)
            continue;
        count += other == profile;
        decoders += other->decoders;
        jpegs += other->jpegs;
        ofas += other->ofas;
    }
    return count <= profile->count && decoders <= all->decoders && jpegs <= all->jpegs && ofas <= all->ofas;
}
