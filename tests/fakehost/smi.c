/* nvidia-smi for the simulated host: lists GPUs and MIG devices, with or without -L, and has compute policies.
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

/* compute-policy -i UUID (-l | --set-timeslice NUMBER) */
static int compute_policy(int argc, char **argv)
{
    static const char *const names[] = {"Default", "Short", "Medium", "Long"};
    int (*by_uuid)(const char *, device *) = function("nvmlDeviceGetHandleByUUID");
    int (*time_slice)(device, int, unsigned *) = function("fakehostTimeSlice");
    unsigned value = 0;
    device gpu;
    int code, lists = argc == 5 && strcmp(argv[4], "-l") == 0;
    if (argc < 5 || strcmp(argv[2], "-i") || by_uuid(argv[3], &gpu)) {
        puts("No devices were found");
        return 6; /* NVML_ERROR_NOT_FOUND */
    }
    if (!lists && (argc != 6 || strcmp(argv[4], "--set-timeslice") || sscanf(argv[5], "%u", &value) != 1)) {
        puts("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.");
        return 2; /* NVML_ERROR_INVALID_ARGUMENT */
    }
    if ((code = time_slice(gpu, !lists, &value)) != 0) {
        printf("Failed to set time-slice: %s\n", error_text(code));
        return code;
    }
    if (lists) {
        puts("+-------------------------------------+\n| GPU compute policies:               |");
        puts("| GPU     Name              Value     |\n|=====================================|");
        printf("|   0     Timeslice         %-9s |\n+-------------------------------------+\n", names[value % 4]);
    }
    return 0;
}

int main(int argc, char **argv)
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
    if (argc > 1 && strcmp(argv[1], "compute-policy") == 0)
        return compute_policy(argc, argv);
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
