/* A libcuda.so.1 whose two GPUs are the processor: what tests/gpu/inside.py calls, with the kernel's work by hand.
 *
 * With WRONG in the environment one sum is wrong; with FAIL=NAME that call fails.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static int trouble(const char *name)
{
    const char *fail = getenv("FAIL");
    return fail != NULL && strcmp(fail, name) == 0 ? 999 : 0;
}

int cuInit(unsigned flags) { return flags ? 1 : trouble("cuInit"); }
int cuDeviceGetCount(int *count) { return *count = 2, 0; }
int cuDeviceGet(int *device, int index) { return *device = index + 40, 0; }
int cuDeviceGetName(char *name, int size, int device)
{
    strncpy(name, device == 40 ? "first" : "second", size);
    return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { return *context = malloc(device), 0; }
int cuCtxSetCurrent(void *context) { return context == NULL; }
int cuModuleLoadData(void **module, const char *text) { return *module = (void *)text, strstr(text, ".entry add(") == NULL; }
int cuModuleGetFunction(void **function, void *module, const char *name) { return *function = module, strcmp(name, "add"); }
int cuMemAlloc_v2(uint64_t *place, size_t size) { return *place = (uintptr_t)malloc(size), trouble("cuMemAlloc_v2"); }
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size) { return memcpy((void *)(uintptr_t)to, from, size), 0; }
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) { return memcpy(to, (void *)(uintptr_t)from, size), 0; }
int cuCtxSynchronize(void) { return 0; }

int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **parameters, void **extra)
{
    uint32_t *vectors[3], count = *(uint32_t *)parameters[3];
    if (function == NULL || gx * bx != count || gy * gz * by * bz != 1 || shared || stream || extra)
        return 1;
    for (int i = 0; i < 3; i++)
        vectors[i] = (uint32_t *)(uintptr_t) * (uint64_t *)parameters[i];
    for (uint32_t i = 0; i < count; i++)
        vectors[2][i] = vectors[0][i] + vectors[1][i];
    vectors[2][count - 1] += getenv("WRONG") != NULL;
    return 0;
}
