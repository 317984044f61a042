/* What the parts of the simulated NVML share: codes, structures and the table of visible GPUs.
 *
 * Codes and structures are those of NVML 12.
 */
#ifndef FAKEHOST_NVML_H
#define FAKEHOST_NVML_H

#include "table.h"

#define EXPORT __attribute__((visibility("default")))

typedef enum {
    OK = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    FUNCTION_NOT_FOUND = 13,
    GPU_IS_LOST = 15,
    RESET_REQUIRED = 16,
    LIB_RM_VERSION_MISMATCH = 18,
    IN_USE = 19,
    MEMORY = 20,
    INSUFFICIENT_RESOURCES = 23,
    ARGUMENT_VERSION_MISMATCH = 25,
    UNKNOWN = 999
} result;

typedef void *device; /* a struct gpu or a struct mig of the tables below */

typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} pci_info_v3;

typedef struct {
    char bus_id[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id, reserved[4];
} pci_info_v2;

typedef struct {
    unsigned multiprocessors, copy_engines, decoders, encoders, jpegs, ofas, gpu_slices, compute_slices;
    unsigned long long memory_mib;
} attributes;

typedef struct {
    unsigned long long total, free, used;
} memory_v1;

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} memory_v2;

extern struct gpu *gpus[MAX_GPUS]; /* the visible ones: positions are NVML indices */
extern unsigned gpu_count, users;
extern struct host host;

result copy_text(char *buffer, unsigned size, const char *text);
struct gpu *as_gpu(device handle);
struct mig *as_mig(device handle);
void keep_visible_migs(struct gpu *gpu);
result give(struct gpu *gpu, void *handle, device *out);

/* What fakehost.conf says now: of the host, and of a GPU (NULL: it is gone). */
const struct host *live_host(void);
const struct gpu *live_gpu(const struct gpu *gpu);
result lost(const struct gpu *gpu);       /* the error that every call answers; OK */
result reach(const struct gpu *gpu);      /* the same, after it has stopped hanging */
result lacks(const char *function);       /* the error that this function answers; OK */
void renew_migs(struct gpu *gpu);
void find_instances(struct gpu *gpu); /* of MIG devices of which the table does not tell it */

/* A figure of a GPU, or of a MIG device of it; whether it is said. */
int figure(const struct gpu *gpu, const struct mig *mig, const char *name, unsigned long long *value);

/* Every call on a handle starts with one of these. */
#define NEED_INIT                \
    if (users == 0)              \
        return UNINITIALIZED;
#define NEED_REACH(gpu)              \
    {                                \
        result answer = reach(gpu);  \
        if (answer)                  \
            return answer;           \
    }
#define NEED_FUNCTION                        \
    {                                        \
        result lacking = lacks(__func__);    \
        if (lacking)                         \
            return lacking;                  \
    }
#define NEED_GPU(gpu, handle, out)              \
    NEED_INIT                                   \
    struct gpu *gpu = as_gpu(handle);           \
    if (gpu == NULL || (out) == NULL)           \
        return INVALID_ARGUMENT;                \
    NEED_REACH(gpu)
#define NEED_EITHER(gpu, mig, handle, out)             \
    NEED_INIT                                          \
    struct mig *mig = as_mig(handle);                  \
    struct gpu *gpu = mig ? mig->parent : as_gpu(handle); \
    if (gpu == NULL || (out) == NULL)                  \
        return INVALID_ARGUMENT;                       \
    NEED_REACH(gpu)

#endif
