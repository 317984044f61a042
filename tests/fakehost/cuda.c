/* A libcuda.so.1 for the simulated host: initialise, tell the version, count the GPUs.
 *
 * Out of scope: contexts, memory, kernels, MIG enumeration. Error codes are those of the driver API.
 */
#include <fcntl.h>
#include <stddef.h>

#include "table.h"

#define EXPORT __attribute__((visibility("default")))

enum { CUDA_SUCCESS = 0, CUDA_INVALID_VALUE = 1, CUDA_NOT_INITIALIZED = 3, CUDA_NO_DEVICE = 100, CUDA_UNKNOWN = 999 };

static struct host host;
static int count = -1;

EXPORT int cuInit(unsigned flags)
{
    int visible = 0;
    if (flags != 0)
        return CUDA_INVALID_VALUE;
    if (!load_host(&host))
        return CUDA_UNKNOWN;
    if (try_node(&host, O_RDWR, CTL_MINOR, "nvidiactl") != 0)
        return CUDA_NO_DEVICE;
    for (int i = 0; i < host.gpu_count; i++)
        visible += gpu_opens(&host, &host.gpus[i]);
    if (visible == 0)
        return CUDA_NO_DEVICE;
    if (try_node(&host, O_RDWR, ANY_DEVICE, "nvidia-uvm") != 0)
        return CUDA_UNKNOWN;
    count = visible;
    return CUDA_SUCCESS;
}

EXPORT int cuDriverGetVersion(int *version)
{
    static struct host any;
    if (version == NULL)
        return CUDA_INVALID_VALUE;
    if (!load_host(&any))
        return CUDA_UNKNOWN;
    *version = any.cuda_major * 1000 + any.cuda_minor * 10;
    return CUDA_SUCCESS;
}

EXPORT int cuDeviceGetCount(int *result)
{
    if (result == NULL)
        return CUDA_INVALID_VALUE;
    if (count < 0)
        return CUDA_NOT_INITIALIZED;
    *result = count;
    return CUDA_SUCCESS;
}
