/* The simulated libnvidia-ml.so.1: what NVIDIA's own nvidia-smi needs of NVML beside what others ask.
 *
 * It looks for a table of internal functions first, and calls NVML one of another version without it. None of them
 * does anything here; what they are for it shows as N/A.
 */
#include <stddef.h>

#include "nvml.h"

#define FUNCTIONS 255 /* more than 555's nvidia-smi calls */

static result answer(void)
{
    return NOT_SUPPORTED;
}

#define TEN answer, answer, answer, answer, answer, answer, answer, answer, answer, answer
#define FIFTY TEN, TEN, TEN, TEN, TEN

/* Its size in bytes comes first. */
static const struct {
    unsigned long long size;
    result (*functions[FUNCTIONS])(void);
} table = {sizeof table, {FIFTY, FIFTY, FIFTY, FIFTY, FIFTY, answer, answer, answer, answer, answer}};

EXPORT result nvmlInternalGetExportTable(const void **out, const void *uuid)
{
    if (out == NULL || uuid == NULL)
        return INVALID_ARGUMENT;
    *out = &table;
    return OK;
}

/* Of each what is asked lies behind pointers that stay as they are. */
#define WITHOUT(name)                                    \
    EXPORT result name(device handle, void *first)       \
    {                                                    \
        NEED_GPU(gpu, handle, first)                     \
        return NOT_SUPPORTED;                            \
    }

WITHOUT(nvmlDeviceGetDisplayActive)
WITHOUT(nvmlDeviceGetEccMode)
WITHOUT(nvmlDeviceGetEnforcedPowerLimit)
WITHOUT(nvmlDeviceGetFanSpeed)
WITHOUT(nvmlDeviceGetPerformanceState)
WITHOUT(nvmlDeviceGetPersistenceMode)

EXPORT result nvmlDeviceValidateInforom(device handle)
{
    NEED_GPU(gpu, handle, handle)
    return NOT_SUPPORTED;
}
