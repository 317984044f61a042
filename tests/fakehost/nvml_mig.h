/* What the parts of the simulated NVML about MIG share: profiles of models, and changes that all processes see. */
#ifndef FAKEHOST_NVML_MIG_H
#define FAKEHOST_NVML_MIG_H

#include "nvml.h"

#define NO_COMPUTE 0xffffffffu

/* A GPU instance profile. It can begin at the memory slices whose bits are set in `starts`. */
struct profile {
    unsigned kind, id; /* NVML_GPU_INSTANCE_PROFILE_*, and the number of nvidia-smi's lists */
    const char *name;
    unsigned slices, count, multiprocessors, copies, decoders, jpegs, ofas, memory_mib;
    unsigned size, starts;
};

struct model {
    int arch_major;
    unsigned least_mib, most_mib, memory_slices;
    const struct profile *profiles; /* the last is that of the whole GPU */
    int profile_count;
};

const struct model *find_model(const struct gpu *gpu); /* NULL: its profiles are not known here */
const struct profile *find_profile(const struct gpu *gpu, unsigned id);
const struct profile *named_profile(const struct gpu *gpu, const char *name);
const struct instance *find_instance(const struct gpu *gpu, unsigned gi);
const struct mig *find_compute(const struct gpu *gpu, unsigned gi, unsigned ci);
#define slice_bits(start, size) (((1u << (size)) - 1) << (start))
unsigned used_slices(const struct gpu *gpu); /* memory slices, as bits */
unsigned used_computes(const struct gpu *gpu, unsigned gi);
unsigned compute_slices(const struct gpu *gpu, const struct instance *instance);
int fits(const struct gpu *gpu, const struct profile *profile); /* whether its count and engines are still free */
unsigned count_multiprocessors(const struct gpu *gpu, const struct profile *profile, unsigned slices);
int gi_cap(const struct gpu *gpu, unsigned gi);
int ci_cap(const struct gpu *gpu, unsigned gi, unsigned ci);

void show_instances(const struct gpu *gpu);
void hide_instances(const struct gpu *gpu); /* all but those that are there */

/* A change begins with what all processes see, under a lock, and is theirs when it ends. */
result begin_change(const struct gpu *gpu, struct gpu **changing);
result end_change(struct gpu *changing, int grows); /* -1: nothing has changed */
int in_use(const struct gpu *gpu, const char *uuid);

device instance_handle(struct gpu *gpu, unsigned gi, unsigned ci);
/* The GPU whose instance a handle is of; NULL if it is none of an instance that is there. */
struct gpu *handle_instance(device handle, unsigned *gi, unsigned *ci);

#define NEED_ROOT                                                \
    if (geteuid() != 0)                                          \
        return NO_PERMISSION;
#define NEED_HANDLE(gpu, gi, ci, handle, out)                    \
    NEED_INIT                                                    \
    unsigned gi, ci;                                             \
    struct gpu *gpu = handle_instance(handle, &gi, &ci);         \
    if (gpu == NULL || (out) == NULL)                            \
        return INVALID_ARGUMENT;                                 \
    NEED_REACH(gpu)                                              \
    NEED_FUNCTION
#define NEED_INSTANCE(gpu, gi, handle, out)                      \
    NEED_HANDLE(gpu, gi, no_compute, handle, out)                \
    if (no_compute != NO_COMPUTE)                                \
        return INVALID_ARGUMENT;

#endif
