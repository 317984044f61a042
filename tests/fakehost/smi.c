/* nvidia-smi for the simulated host: lists GPUs and MIG devices, with or without -L.
 *
 * Loads libnvidia-ml.so.1 by name, as the real program does, so it shows what the loader really finds.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *device;

static void *library;

static void *function(const char *name)
{
    void *found = dlsym(library, name);
    if (found == NULL) {
        fprintf(stderr, "nvidia-smi: libnvidia-ml.so.1 has no %s\n", name);
        exit(13); /* NVML_ERROR_FUNCTION_NOT_FOUND */
    }
    return found;
}

static const char *error_text(int code)
{
    const char *(*error)(int) = function("nvmlErrorString");
    return error(code);
}

static void print_migs(device gpu)
{
    int (*max_count)(device, unsigned *) = function("nvmlDeviceGetMaxMigDeviceCount");
    int (*by_index)(device, unsigned, device *) = function("nvmlDeviceGetMigDeviceHandleByIndex");
    int (*get_name)(device, char *, unsigned) = function("nvmlDeviceGetName");
    int (*get_uuid)(device, char *, unsigned) = function("nvmlDeviceGetUUID");
    unsigned max = 0;
    char name[96], uuid[96];
    device mig;
    max_count(gpu, &max);
    for (unsigned i = 0; i < max; i++) {
        if (by_index(gpu, i, &mig) != 0 || get_name(mig, name, sizeof name) || get_uuid(mig, uuid, sizeof uuid))
            continue;
        const char *profile = strstr(name, " MIG ");
        printf("  MIG %-12sDevice %2u: (UUID: %s)\n", profile ? profile + 5 : name, i, uuid);
    }
}

int main(void)
{
    unsigned count = 0;
    int code;
    library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (library == NULL) {
        fprintf(stderr, "nvidia-smi: %s\n", dlerror());
        return 12; /* NVML_ERROR_LIBRARY_NOT_FOUND */
    }
    int (*init)(void) = function("nvmlInit_v2");
    int (*get_count)(unsigned *) = function("nvmlDeviceGetCount_v2");
    int (*by_index)(unsigned, device *) = function("nvmlDeviceGetHandleByIndex_v2");
    int (*get_name)(device, char *, unsigned) = function("nvmlDeviceGetName");
    int (*get_uuid)(device, char *, unsigned) = function("nvmlDeviceGetUUID");
    if ((code = init()) != 0 || (code = get_count(&count)) != 0) {
        printf("Failed to initialize NVML: %s\n", error_text(code));
        return code;
    }
    if (count == 0) {
        puts("No devices were found");
        return 6; /* NVML_ERROR_NOT_FOUND */
    }
    for (unsigned i = 0; i < count; i++) {
        char name[96], uuid[96];
        device gpu;
        int failed = by_index(i, &gpu);
        if (failed || (failed = get_name(gpu, name, sizeof name)) || (failed = get_uuid(gpu, uuid, sizeof uuid))) {
            printf("GPU %u: %s\n", i, error_text(failed));
            code = failed;
            continue;
        }
        printf("GPU %u: %s (UUID: %s)\n", i, name, uuid);
        print_migs(gpu);
    }
    return code;
}
