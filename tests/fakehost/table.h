/* The simulated host's table: what fakehost.conf says, and which device nodes open.
 *
 * Part of the simulated libnvidia-ml and libcuda. Out of scope: threads, and more than MAX_GPUS GPUs.
 */
#ifndef FAKEHOST_TABLE_H
#define FAKEHOST_TABLE_H

#define MAX_GPUS 64
#define MAX_MIG 7
#define MAX_INSTANCES 15 /* of a GPU; their ids are below it */
#define MAX_COMPUTES 8
#define MAX_LACKING 16
#define MAX_FIGURES 48 /* of a GPU and its MIG devices */
#define CTL_MINOR 255
#define ANY_DEVICE (-1)

struct gpu;

struct mig {
    struct gpu *parent;
    unsigned gi, ci;
    int gi_cap, ci_cap; /* minors of their nodes in /dev/nvidia-caps */
    char profile[32], uuid[80];
    unsigned start, size; /* compute slices of its GPU instance; size 0: not said */
    unsigned memory_mib;  /* of one that NVML has made; 0: as large as its name says */
};

/* A GPU instance. Where the table has MIG devices only, theirs are worked out: see find_instances. */
struct instance {
    struct gpu *parent;
    unsigned gi, profile; /* NVML's ids */
    unsigned start, size; /* memory slices */
};

struct gpu {
    int number, minor; /* number: position on the host, in PCI order */
    unsigned domain, bus, device, device_id;
    int arch_major, arch_minor, brand;
    unsigned long long memory_mib;
    int mig_current, mig_pending; /* -1: the model knows no MIG */
    int fail;                     /* what NVML answers for this GPU's handle, 0 for all well */
    int lost, hang, no_events;    /* every call's answer; every call hangs; the answer to registering for events */
    int recovery, rows_pending, rows_failed; /* recovery -1: not said */
    int fabric_state, fabric_status;         /* of nvmlGpuFabricInfo_t; state 0: as the cluster says */
    struct {
        char name[32];
        int gi; /* -1: the GPU's own */
        unsigned long long value;
    } figures[MAX_FIGURES];
    int figure_count;
    int mig_count, instance_count, no_reset;
    struct mig migs[MAX_MIG];
    struct instance instances[MAX_INSTANCES];
    char places[MAX_INSTANCES][1 + MAX_COMPUTES]; /* whose addresses are the handles of instances, by their ids */
    unsigned char near[MAX_GPUS], links[MAX_GPUS]; /* by number: topology level + 1 (0: not said), NVLinks */
    unsigned char switched;                        /* NVLinks to an NVSwitch */
    unsigned char cluster[16];                     /* UUID of what they reach, and the clique in it; 0: nothing */
    unsigned clique;
    char model[96], uuid[80];
};

struct host {
    int in_container; /* the directory the host was built in is not there */
    char root[3072], dev[3072], driver[64];
    int cuda_major, cuda_minor;
    int delay_ms, hang, fail, fail_links;
    struct {
        char function[48];
        int code;
    } lacking[MAX_LACKING]; /* functions that answer an error */
    int lacking_count;
    int gpu_count;
    struct gpu gpus[MAX_GPUS];
};

/* Fill in the host from <root>/etc/fakehost.conf, or from the text in this library where <root> is not there.
 * 0, and a line on stderr, when a line of the table cannot be read. */
int load_host(struct host *host);

/* Write modes, GPU instances and MIG devices of a GPU in the place of those in fakehost.conf, or in the text in the
 * built libraries, which is what containers read. Whoever calls this holds etc/fakehost.lock. 0, or -1 with errno. */
const char *baked_mark(void); /* the first line of a baked text */
int store_conf(const struct host *host, const struct gpu *gpu);
int store_baked(const struct host *host, const struct gpu *gpu);

/* Open and close the node <dev>/dev/<name>; 0, or the errno that says why a driver's client could not use it.
 * No driver stands behind the nodes here: a permitted open answers ENXIO and counts as success. */
__attribute__((format(printf, 4, 5))) int try_node(const struct host *host, int flags, int minor,
                                                   const char *format, ...);

int gpu_opens(const struct host *host, const struct gpu *gpu);

#endif
