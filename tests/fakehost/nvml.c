/* The simulated libnvidia-ml.so.1, first half: initialising, versions, and handles.
 *
 * A GPU is there when its device node opens; a MIG device when its GPU and both of its capability nodes do.
 * Out of scope: threads, and everything that measures or changes a GPU; nvidia-ml-py reports those calls as
 * NVML_ERROR_FUNCTION_NOT_FOUND, as on an old driver.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "nvml_mig.h"

struct gpu *gpus[MAX_GPUS];
unsigned gpu_count, users;

struct host host;

result copy_text(char *buffer, unsigned size, const char *text)
{
    if (buffer == NULL)
        return INVALID_ARGUMENT;
    if (strlen(text) >= size)
        return INSUFFICIENT_SIZE;
    strcpy(buffer, text);
    return OK;
}

struct gpu *as_gpu(device handle)
{
    for (unsigned i = 0; i < gpu_count; i++)
        if (gpus[i] == handle)
            return gpus[i];
    return NULL;
}

struct mig *as_mig(device handle)
{
    for (unsigned i = 0; i < gpu_count; i++)
        for (int k = 0; k < gpus[i]->mig_count; k++)
            if (&gpus[i]->migs[k] == handle)
                return handle;
    return NULL;
}

result give(struct gpu *gpu, void *handle, device *out)
{
    if (gpu->fail)
        return gpu->fail;
    NEED_REACH(gpu)
    *out = handle;
    return OK;
}

/* A half upgraded host: the loaded module is not of this library's version. Containers do not carry the file. */
static result check_module(void)
{
    char path[4096], line[256] = "", version[64] = "";
    if (host.in_container)
        return OK;
    snprintf(path, sizeof path, "%s/proc/driver/nvidia/version", host.root);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return DRIVER_NOT_LOADED;
    char *read_line = fgets(line, sizeof line, file);
    fclose(file);
    char *module = read_line ? strstr(line, "Kernel Module ") : NULL;
    /* The open modules name the machine before the version. */
    if (module == NULL || (sscanf(module, "Kernel Module for %*s %63s", version) != 1
                           && sscanf(module, "Kernel Module %63s", version) != 1))
        return UNKNOWN;
    return strcmp(version, host.driver) == 0 ? OK : LIB_RM_VERSION_MISMATCH;
}

static result check_control_node(void)
{
    switch (try_node(&host, O_RDWR, CTL_MINOR, "nvidiactl")) {
    case 0:
        return OK;
    case ENOENT:
        return DRIVER_NOT_LOADED;
    case EACCES:
        return NO_PERMISSION;
    default: /* EPERM, the answer of a device cgroup, is what users know as "Unknown Error" */
        return UNKNOWN;
    }
}

void keep_visible_migs(struct gpu *gpu)
{
    int kept = 0;
    for (int k = 0; k < gpu->mig_count && gpu->mig_current == 1; k++) {
        struct mig mig = gpu->migs[k];
        if (try_node(&host, O_RDONLY, ANY_DEVICE, "nvidia-caps/nvidia-cap%d", mig.gi_cap) == 0 &&
            try_node(&host, O_RDONLY, ANY_DEVICE, "nvidia-caps/nvidia-cap%d", mig.ci_cap) == 0)
            gpu->migs[kept++] = mig;
    }
    gpu->mig_count = kept;
    kept = 0;
    for (int k = 0; k < gpu->instance_count && gpu->mig_current == 1; k++)
        if (!host.in_container ||
            try_node(&host, O_RDONLY, ANY_DEVICE, "nvidia-caps/nvidia-cap%d", gi_cap(gpu, gpu->instances[k].gi)) == 0)
            gpu->instances[kept++] = gpu->instances[k];
    gpu->instance_count = kept;
}

static void find_visible(void)
{
    gpu_count = 0;
    for (int i = 0; i < host.gpu_count; i++) {
        struct gpu *gpu = &host.gpus[i];
        if (!gpu_opens(&host, gpu))
            continue;
        find_instances(gpu);
        keep_visible_migs(gpu);
        gpus[gpu_count++] = gpu;
    }
}

/* Who asks for usr/lib/fakehost/nvml.log, by making it, reads there when NVML was opened and let go. */
static void record(const char *what)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/usr/lib/fakehost/nvml.log", host.root);
    int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (fd >= 0) {
        dprintf(fd, "%s\n", what);
        close(fd);
    }
}

EXPORT result nvmlInitWithFlags(unsigned flags)
{
    result failed;
    (void)flags;
    if (users > 0) {
        users++;
        return OK;
    }
    if (!load_host(&host))
        return UNKNOWN;
    record("opened");
    usleep(host.delay_ms * 1000u);
    while (host.hang)
        pause();
    if (host.fail)
        return host.fail;
    if ((failed = check_control_node()) || (failed = check_module()))
        return failed;
    find_visible();
    users = 1;
    return OK;
}

EXPORT result nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

EXPORT result nvmlInit(void)
{
    return nvmlInitWithFlags(0);
}

EXPORT result nvmlShutdown(void)
{
    NEED_INIT
    users--;
    record("let go");
    return OK;
}

EXPORT const char *nvmlErrorString(result code)
{
    switch (code) {
    case OK: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NO_PERMISSION: return "Insufficient Permissions";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case TIMEOUT: return "Timeout";
    case FUNCTION_NOT_FOUND: return "Function Not Found";
    case GPU_IS_LOST: return "GPU is lost";
    case RESET_REQUIRED: return "GPU requires reset";
    case LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
    case IN_USE: return "In use by another client";
    case MEMORY: return "Insufficient Memory";
    case INSUFFICIENT_RESOURCES: return "Insufficient Resources";
    case ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
    default: return "Unknown Error";
    }
}

EXPORT result nvmlSystemGetDriverVersion(char *version, unsigned size)
{
    NEED_INIT
    return copy_text(version, size, host.driver);
}

/* NVML and CUDA versions belong to the library: they are told before nvmlInit too. */
EXPORT result nvmlSystemGetNVMLVersion(char *version, unsigned size)
{
    static struct host any;
    char text[80];
    if (!load_host(&any))
        return UNKNOWN;
    snprintf(text, sizeof text, "%d.%s", any.cuda_major, any.driver);
    return copy_text(version, size, text);
}

EXPORT result nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    static struct host any;
    NEED_FUNCTION
    if (version == NULL)
        return INVALID_ARGUMENT;
    if (!load_host(&any))
        return UNKNOWN;
    *version = any.cuda_major * 1000 + any.cuda_minor * 10;
    return OK;
}

EXPORT result nvmlSystemGetCudaDriverVersion(int *version)
{
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

EXPORT result nvmlDeviceGetCount_v2(unsigned *count)
{
    NEED_INIT
    if (count == NULL)
        return INVALID_ARGUMENT;
    *count = gpu_count;
    return OK;
}

EXPORT result nvmlDeviceGetCount(unsigned *count)
{
    return nvmlDeviceGetCount_v2(count);
}

EXPORT result nvmlDeviceGetHandleByIndex_v2(unsigned index, device *out)
{
    NEED_INIT
    if (index >= gpu_count || out == NULL)
        return INVALID_ARGUMENT;
    return give(gpus[index], gpus[index], out);
}

EXPORT result nvmlDeviceGetHandleByIndex(unsigned index, device *out)
{
    return nvmlDeviceGetHandleByIndex_v2(index, out);
}

EXPORT result nvmlDeviceGetHandleByUUID(const char *uuid, device *out)
{
    NEED_INIT
    if (uuid == NULL || out == NULL)
        return INVALID_ARGUMENT;
    for (unsigned i = 0; i < gpu_count; i++) {
        if (strcmp(gpus[i]->uuid, uuid) == 0)
            return give(gpus[i], gpus[i], out);
        renew_migs(gpus[i]);
        for (int k = 0; k < gpus[i]->mig_count; k++)
            if (strcmp(gpus[i]->migs[k].uuid, uuid) == 0)
                return give(gpus[i], &gpus[i]->migs[k], out);
    }
    return NOT_FOUND;
}

EXPORT result nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, device *out)
{
    unsigned domain = 0, bus, slot;
    NEED_INIT
    if (bus_id == NULL || out == NULL)
        return INVALID_ARGUMENT;
    if (sscanf(bus_id, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = 0; /* the short form has none */
        if (sscanf(bus_id, "%x:%x", &bus, &slot) != 2)
            return INVALID_ARGUMENT;
    }
    for (unsigned i = 0; i < gpu_count; i++)
        if (gpus[i]->domain == domain && gpus[i]->bus == bus && gpus[i]->device == slot)
            return give(gpus[i], gpus[i], out);
    return NOT_FOUND;
}

EXPORT result nvmlDeviceGetHandleByPciBusId(const char *bus_id, device *out)
{
    return nvmlDeviceGetHandleByPciBusId_v2(bus_id, out);
}
