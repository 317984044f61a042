/* The simulated libnvidia-ml.so.1: figures. Clocks, temperatures, power, utilization, memory, ECC errors, processes.
 *
 * A figure is a line of fakehost.conf, and may change at any time; one that is not there is NOT_SUPPORTED, and so is
 * utilization in MIG mode. Out of scope: figures that follow from what runs.
 */
#include <stdlib.h>
#include <string.h>

#include "nvml.h"

#define FIRST_WITH_EVENT_REASONS 535 /* the driver's major; before, they are throttle reasons alone */
#define FIRST_WITH_TEMPERATURE_V 570
#define FIRST_PID 1000
#define WHOLE_GPU (-1)

typedef struct {
    unsigned gpu, memory;
} utilization;

typedef struct {
    unsigned version, sensor;
    int temperature;
} temperature_v1;

typedef struct {
    unsigned pid;
    unsigned long long memory;
    unsigned gpu_instance, compute_instance;
} process_v2;

int figure(const struct gpu *gpu, const struct mig *mig, const char *name, unsigned long long *value)
{
    const struct gpu *live = live_gpu(gpu);
    int gi = mig ? (int)mig->gi : WHOLE_GPU;
    for (int i = 0; live != NULL && i < live->figure_count; i++)
        if (live->figures[i].gi == gi && strcmp(live->figures[i].name, name) == 0) {
            *value = live->figures[i].value;
            return 1;
        }
    *value = 0;
    return 0;
}

static result number(const struct gpu *gpu, const char *name, unsigned *out)
{
    unsigned long long value;
    int said = figure(gpu, NULL, name, &value);
    *out = value;
    return said ? OK : NOT_SUPPORTED;
}

EXPORT result nvmlDeviceGetClockInfo(device handle, unsigned type, unsigned *clock)
{
    static const char *const names[] = {"graphics_clock", "sm_clock", "mem_clock", "video_clock"};
    NEED_GPU(gpu, handle, clock)
    NEED_FUNCTION
    return type < 4 ? number(gpu, names[type], clock) : INVALID_ARGUMENT;
}

EXPORT result nvmlDeviceGetTemperature(device handle, unsigned sensor, unsigned *temperature)
{
    NEED_GPU(gpu, handle, temperature)
    NEED_FUNCTION
    return sensor == 0 ? number(gpu, "temperature", temperature) : INVALID_ARGUMENT;
}

EXPORT result nvmlDeviceGetTemperatureV(device handle, temperature_v1 *temperature)
{
    unsigned value;
    NEED_GPU(gpu, handle, temperature)
    NEED_FUNCTION
    if (atoi(host.driver) < FIRST_WITH_TEMPERATURE_V)
        return FUNCTION_NOT_FOUND;
    if (temperature->version != 0x100000c || temperature->sensor != 0)
        return INVALID_ARGUMENT;
    result answer = number(gpu, "temperature", &value);
    temperature->temperature = value;
    return answer;
}

EXPORT result nvmlDeviceGetPowerUsage(device handle, unsigned *milliwatts)
{
    NEED_GPU(gpu, handle, milliwatts)
    NEED_FUNCTION
    return number(gpu, "power", milliwatts);
}

EXPORT result nvmlDeviceGetTotalEnergyConsumption(device handle, unsigned long long *millijoules)
{
    NEED_GPU(gpu, handle, millijoules)
    NEED_FUNCTION
    return figure(gpu, NULL, "energy", millijoules) ? OK : NOT_SUPPORTED;
}

EXPORT result nvmlDeviceGetPcieReplayCounter(device handle, unsigned *replays)
{
    NEED_GPU(gpu, handle, replays)
    NEED_FUNCTION
    return number(gpu, "pcie_replays", replays);
}

EXPORT result nvmlDeviceGetUtilizationRates(device handle, utilization *rates)
{
    NEED_GPU(gpu, handle, rates)
    NEED_FUNCTION
    if (gpu->mig_current == 1)
        return NOT_SUPPORTED;
    result answer = number(gpu, "gpu_utilization", &rates->gpu);
    return answer ? answer : number(gpu, "memory_utilization", &rates->memory);
}

static result engine(device handle, const char *name, unsigned *percent, unsigned *period_us)
{
    NEED_GPU(gpu, handle, percent)
    if (period_us == NULL)
        return INVALID_ARGUMENT;
    *period_us = 167000;
    return gpu->mig_current == 1 ? NOT_SUPPORTED : number(gpu, name, percent);
}

EXPORT result nvmlDeviceGetEncoderUtilization(device handle, unsigned *percent, unsigned *period_us)
{
    NEED_FUNCTION
    return engine(handle, "encoder_utilization", percent, period_us);
}

EXPORT result nvmlDeviceGetDecoderUtilization(device handle, unsigned *percent, unsigned *period_us)
{
    NEED_FUNCTION
    return engine(handle, "decoder_utilization", percent, period_us);
}

EXPORT result nvmlDeviceGetCurrentClocksThrottleReasons(device handle, unsigned long long *reasons)
{
    NEED_GPU(gpu, handle, reasons)
    NEED_FUNCTION
    return figure(gpu, NULL, "throttle", reasons) ? OK : NOT_SUPPORTED;
}

EXPORT result nvmlDeviceGetCurrentClocksEventReasons(device handle, unsigned long long *reasons)
{
    NEED_GPU(gpu, handle, reasons)
    NEED_FUNCTION
    if (atoi(host.driver) < FIRST_WITH_EVENT_REASONS)
        return FUNCTION_NOT_FOUND;
    return figure(gpu, NULL, "throttle", reasons) ? OK : NOT_SUPPORTED;
}

/* Corrected or not, since the driver was loaded or ever. */
EXPORT result nvmlDeviceGetTotalEccErrors(device handle, unsigned error, unsigned counter, unsigned long long *count)
{
    static const char *const names[2][2] = {{"ecc_corrected_volatile", "ecc_corrected_aggregate"},
                                            {"ecc_uncorrected_volatile", "ecc_uncorrected_aggregate"}};
    NEED_GPU(gpu, handle, count)
    NEED_FUNCTION
    if (error > 1 || counter > 1)
        return INVALID_ARGUMENT;
    return figure(gpu, NULL, names[error][counter], count) ? OK : NOT_SUPPORTED;
}

static result list(device handle, const char *name, unsigned first, unsigned *count, process_v2 *rows)
{
    unsigned long long there;
    unsigned room;
    NEED_EITHER(gpu, mig, handle, count)
    room = *count;
    figure(gpu, mig, name, &there);
    *count = there;
    if (there > room)
        return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < there && rows != NULL; i++) {
        memset(&rows[i], 0, sizeof rows[i]);
        rows[i].pid = first + i;
        rows[i].gpu_instance = rows[i].compute_instance = 0xffffffff;
    }
    return OK;
}

EXPORT result nvmlDeviceGetComputeRunningProcesses_v3(device handle, unsigned *count, process_v2 *rows)
{
    NEED_FUNCTION
    return list(handle, "processes", FIRST_PID, count, rows);
}

/* The first of them computes, too. */
EXPORT result nvmlDeviceGetGraphicsRunningProcesses_v3(device handle, unsigned *count, process_v2 *rows)
{
    NEED_FUNCTION
    return list(handle, "graphics_processes", FIRST_PID, count, rows);
}
