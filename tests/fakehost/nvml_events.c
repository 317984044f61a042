/* The simulated libnvidia-ml.so.1: health. Events, the recovery action, remapped rows, retired pages.
 *
 * An event is a line that somebody appends to etc/fakehost.events. A set waits through inotify, and sees what was
 * appended after it was made. Out of scope: threads, and events that are no error.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <time.h>
#include <unistd.h>

#include "nvml.h"

#define EVENT_TYPES 0x0fULL       /* single and double bit ECC, P-state, XID */
#define MEMORY_TEMPERATURE 82     /* NVML_FI_DEV_MEMORY_TEMP */
#define RECOVERY_ACTION 230       /* NVML_FI_DEV_GET_GPU_RECOVERY_ACTION */
#define FIRST_WITH_RECOVERY 570   /* the driver's major */
#define FIRST_WITH_REMAPPED_ROWS 8 /* compute capability's major */
#define VALUE_TYPE_UNSIGNED_INT 1
#define WITHOUT_INOTIFY_MS 5

struct event_set {
    int watch;
    off_t read;                         /* bytes of the file */
    unsigned long long types[MAX_GPUS]; /* by number */
};

typedef struct {
    device device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
} event_data;

typedef struct {
    unsigned field, scope;
    long long timestamp, latency_us;
    unsigned type;
    result answer;
    union {
        unsigned number;
        unsigned long long large;
    } value;
} field_value;

static int open_events(void)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/etc/fakehost.events", host.root);
    return open(path, O_RDONLY | O_CLOEXEC);
}

EXPORT result nvmlEventSetCreate(struct event_set **out)
{
    char path[4096];
    NEED_INIT
    NEED_FUNCTION
    if (out == NULL || (*out = calloc(1, sizeof **out)) == NULL)
        return out ? MEMORY : INVALID_ARGUMENT;
    snprintf(path, sizeof path, "%s/etc", host.root);
    (*out)->watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    inotify_add_watch((*out)->watch, path, IN_MODIFY | IN_CREATE | IN_MOVED_TO);
    int fd = open_events();
    if (fd >= 0) {
        (*out)->read = lseek(fd, 0, SEEK_END);
        close(fd);
    }
    return OK;
}

EXPORT result nvmlEventSetFree(struct event_set *set)
{
    NEED_INIT
    if (set == NULL)
        return INVALID_ARGUMENT;
    close(set->watch);
    free(set);
    return OK;
}

EXPORT result nvmlDeviceGetSupportedEventTypes(device handle, unsigned long long *types)
{
    NEED_GPU(gpu, handle, types)
    NEED_FUNCTION
    *types = EVENT_TYPES;
    return OK;
}

EXPORT result nvmlDeviceRegisterEvents(device handle, unsigned long long types, struct event_set *set)
{
    NEED_GPU(gpu, handle, set)
    NEED_FUNCTION
    if (types & ~EVENT_TYPES)
        return NOT_SUPPORTED;
    const struct gpu *live = live_gpu(gpu);
    if (live == NULL || live->no_events)
        return live ? live->no_events : GPU_IS_LOST;
    set->types[gpu->number] |= types;
    return OK;
}

static int understood(const struct event_set *set, const char *line, event_data *event)
{
    char uuid[80];
    int gi, ci; /* -1: none, as NVML has it, 0xffffffff */
    if (sscanf(line, "gpu=%79s type=%llx data=%llu gi=%d ci=%d", uuid, &event->type, &event->data, &gi, &ci) != 5)
        return 0;
    event->device = NULL;
    for (unsigned i = 0; i < gpu_count; i++)
        if (strcmp(gpus[i]->uuid, uuid) == 0 && set->types[gpus[i]->number] & event->type)
            event->device = gpus[i];
    event->gpu_instance = gi;
    event->compute_instance = ci;
    return event->device != NULL;
}

/* Whether a line was appended that counts, with the first of them. */
static int next_event(struct event_set *set, event_data *event)
{
    char line[128], *end;
    int fd = open_events(), found = 0;
    ssize_t size;
    while (!found && fd >= 0 && (size = pread(fd, line, sizeof line - 1, set->read)) > 0) {
        line[size] = '\0';
        if ((end = strchr(line, '\n')) == NULL)
            break;
        set->read += end + 1 - line;
        found = understood(set, line, event);
    }
    if (fd >= 0)
        close(fd);
    return found;
}

static result any_lost(const struct event_set *set)
{
    for (unsigned i = 0; i < gpu_count; i++)
        if (set->types[gpus[i]->number] && lost(gpus[i]))
            return GPU_IS_LOST;
    return OK;
}

static long long now_ms(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000LL + time.tv_nsec / 1000000;
}

EXPORT result nvmlEventSetWait_v2(struct event_set *set, event_data *event, unsigned timeout_ms)
{
    char told[4096];
    long long until = now_ms() + timeout_ms, left;
    NEED_INIT
    NEED_FUNCTION
    if (set == NULL || event == NULL)
        return INVALID_ARGUMENT;
    for (;;) {
        if (next_event(set, event))
            return OK;
        if (any_lost(set))
            return GPU_IS_LOST;
        if ((left = until - now_ms()) <= 0)
            return TIMEOUT;
        struct pollfd change = {.fd = set->watch, .events = POLLIN};
        poll(&change, 1, set->watch < 0 && left > WITHOUT_INOTIFY_MS ? WITHOUT_INOTIFY_MS : left);
        while (set->watch >= 0 && read(set->watch, told, sizeof told) > 0)
            ;
    }
}

EXPORT result nvmlDeviceGetFieldValues(device handle, int count, field_value *values)
{
    NEED_GPU(gpu, handle, values)
    NEED_FUNCTION
    const struct gpu *live = live_gpu(gpu);
    int said = live ? live->recovery : -1, driver = atoi(host.driver);
    for (int i = 0; i < count; i++) {
        unsigned long long value = said > 0 ? said : 0;
        int known = values[i].field == RECOVERY_ACTION && (said >= 0 || driver >= FIRST_WITH_RECOVERY);
        if (values[i].field == MEMORY_TEMPERATURE)
            known = figure(gpu, NULL, "memory_temperature", &value);
        values[i].answer = known ? OK : NOT_SUPPORTED;
        values[i].type = VALUE_TYPE_UNSIGNED_INT;
        values[i].value.large = 0;
        values[i].value.number = known ? value : 0;
    }
    return OK;
}

EXPORT result nvmlDeviceGetRemappedRows(device handle, unsigned *correctable, unsigned *uncorrectable,
                                        unsigned *pending, unsigned *failed)
{
    NEED_GPU(gpu, handle, pending)
    NEED_FUNCTION
    if (correctable == NULL || uncorrectable == NULL || failed == NULL)
        return INVALID_ARGUMENT;
    if (gpu->arch_major < FIRST_WITH_REMAPPED_ROWS)
        return NOT_SUPPORTED;
    unsigned long long value;
    figure(gpu, NULL, "correctable_rows", &value);
    *correctable = value;
    figure(gpu, NULL, "uncorrectable_rows", &value);
    *uncorrectable = value;
    const struct gpu *live = live_gpu(gpu);
    *pending = live ? live->rows_pending : 0;
    *failed = live ? live->rows_failed : 0;
    return live ? OK : GPU_IS_LOST;
}

/* Before GPUs remapped rows; how many there are of a cause is all that is simulated of them. */
EXPORT result nvmlDeviceGetRetiredPages(device handle, unsigned cause, unsigned *count, unsigned long long *addresses)
{
    static const char *const names[2] = {"retired_single", "retired_double"};
    NEED_GPU(gpu, handle, count)
    NEED_FUNCTION
    if (cause > 1)
        return INVALID_ARGUMENT;
    if (gpu->arch_major >= FIRST_WITH_REMAPPED_ROWS)
        return NOT_SUPPORTED;
    unsigned long long there;
    figure(gpu, NULL, names[cause], &there);
    unsigned room = *count;
    *count = there;
    if (addresses == NULL || room < there)
        return there ? INSUFFICIENT_SIZE : OK;
    for (unsigned i = 0; i < there; i++)
        addresses[i] = (i + 1ull) << 12;
    return OK;
}
