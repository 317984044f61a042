/* nvidia-cuda-mps-control for the simulated host: the daemon (-f), and the program that tells it commands.
 *
 * As the real one it has its socket in CUDA_MPS_PIPE_DIRECTORY and its log in CUDA_MPS_LOG_DIRECTORY, and it is
 * strict: it ends where directories, GPUs, or their compute mode are not as a daemon of EXCLUSIVE_PROCESS GPUs needs
 * them. Each command is a line in its control.log; files named "old" and "deaf" in its log directory make it one of a
 * driver without memory limits, and one that answers nothing. Out of scope: CUDA, and servers.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define LINE 4096
#define MOST 64 /* GPUs */

static FILE *logs;
static char memory[MOST][32];
static int gpus, threads = 100;

static void fail(const char *why, const char *what)
{
    fprintf(stderr, "nvidia-cuda-mps-control: %s: %s\n", what, why);
    exit(1);
}

static const char *directory(const char *name)
{
    struct stat status;
    const char *path = getenv(name);
    if (path == NULL || stat(path, &status) || !S_ISDIR(status.st_mode))
        fail("is no directory", name);
    if (status.st_uid != geteuid() || (status.st_mode & 0022))
        fail("is not the daemon's alone", name);
    return path;
}

static int is_there(const char *name)
{
    char path[LINE];
    snprintf(path, sizeof path, "%s/%s", getenv("CUDA_MPS_LOG_DIRECTORY"), name);
    return access(path, F_OK) == 0;
}

static int control(int listening)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "control"};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (chdir(getenv("CUDA_MPS_PIPE_DIRECTORY")))
        fail(strerror(errno), "CUDA_MPS_PIPE_DIRECTORY");
    if (listening)
        unlink("control");
    if ((listening ? bind : connect)(fd, (struct sockaddr *)&address, sizeof address)) {
        puts("Cannot find MPS control daemon process");
        exit(1);
    }
    return fd;
}

/* Open a file of the host that this program is part of. */
static FILE *host_file(const char *name)
{
    char root[LINE] = "", path[2 * LINE];
    FILE *file = NULL;
    if (readlink("/proc/self/exe", root, sizeof root - 1) < 0)
        return NULL;
    for (char *end; file == NULL && (end = strrchr(root, '/')) != NULL;) {
        *end = '\0';
        snprintf(path, sizeof path, "%s/usr/lib/fakehost/%s", root, name);
        file = fopen(path, "re");
    }
    return file;
}

/* All GPUs that it is given must be its own, or one MIG instance. NVML is not loaded: the host's file says it. */
static void check_gpus(void)
{
    const char *uuids = getenv("CUDA_VISIBLE_DEVICES");
    char copy[LINE], name[2 * LINE], *rest = copy, *uuid;
    if (uuids == NULL || strlen(uuids) >= sizeof copy)
        fail("names no GPU", "CUDA_VISIBLE_DEVICES");
    strcpy(copy, uuids);
    while ((uuid = strsep(&rest, ",")) != NULL && gpus < MOST) {
        FILE *file;
        int mode = 0;
        if (strncmp(uuid, "MIG-", 4) == 0) {
            if (strcmp(uuids, uuid))
                fail("is not all that is named: a process can use one MIG instance", uuid);
            strcpy(memory[gpus++], "-1");
            continue;
        }
        if (strncmp(uuid, "GPU-", 4))
            fail("is no UUID of a GPU", uuid);
        snprintf(name, sizeof name, "compute-mode-%s", uuid);
        file = host_file(name);
        if (file == NULL || fscanf(file, "%d", &mode) != 1 || mode != 3)
            fail("is not in compute mode EXCLUSIVE_PROCESS", uuid);
        fclose(file);
        strcpy(memory[gpus++], "-1");
    }
}

static void answer(const char *line, FILE *out)
{
    int index, percent;
    char size[32];
    if (sscanf(line, "set_default_device_pinned_mem_limit %d %31s", &index, size) == 2 && !is_there("old")) {
        if (index < 0 || index >= gpus || size[strlen(size) - 1] != 'M')
            fprintf(out, "Invalid argument\n");
        else
            strcpy(memory[index], size);
    } else if (sscanf(line, "get_default_device_pinned_mem_limit %d", &index) == 1 && !is_there("old")) {
        fprintf(out, "%s\n", index >= 0 && index < gpus ? memory[index] : "Invalid argument");
    } else if (sscanf(line, "set_default_active_thread_percentage %d", &percent) == 1) {
        fprintf(out, "%.1f\n", (double)(threads = percent));
    } else if (strcmp(line, "get_default_active_thread_percentage") == 0) {
        fprintf(out, "%.1f\n", (double)threads);
    } else if (strcmp(line, "get_server_list") == 0) {
        fputs(is_there("client") ? "4242\n" : "", out);
    } else if (strncmp(line, "get_client_list ", 16) == 0) {
        fputs("4243\n", out);
    } else if (strcmp(line, "quit") != 0) {
        fprintf(out, "Unknown command: %s\n", line);
    }
}

static void serve(const char *options)
{
    struct stat shm = {0};
    char line[LINE];
    directory("CUDA_MPS_PIPE_DIRECTORY");
    snprintf(line, sizeof line, "%s/control.log", directory("CUDA_MPS_LOG_DIRECTORY"));
    if ((logs = fopen(line, "ae")) == NULL)
        fail(strerror(errno), line);
    check_gpus();
    stat("/dev/shm", &shm);
    fprintf(logs, "begins%s shm=%lu:%lu gpus=%d\n", options, (unsigned long)shm.st_dev, (unsigned long)shm.st_ino,
            gpus);
    fflush(logs);
    int fd = control(1), client;
    chmod("control", 0666);
    listen(fd, 64);
    while ((client = accept4(fd, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
        FILE *in = fdopen(client, "r+");
        while (is_there("deaf"))
            usleep(10000);
        while (fgets(line, sizeof line, in)) {
            line[strcspn(line, "\n")] = '\0';
            fprintf(logs, "%s\n", line);
            fflush(logs);
            answer(line, in);
            fflush(in);
            if (strcmp(line, "quit") == 0) {
                unlink("control");
                exit(0);
            }
        }
        fclose(in);
    }
}

int main(int argc, char **argv)
{
    char line[LINE];
    signal(SIGPIPE, SIG_IGN);
    if (argc > 1 && strcmp(argv[1], "-f") == 0) {
        char options[LINE] = "";
        for (int i = 2; i < argc; i++)
            snprintf(options + strlen(options), sizeof options - strlen(options), " %s", argv[i]);
        serve(options);
        return 1;
    }
    if (argc > 1)
        fail("is no option here", argv[1]);
    int fd = control(0);
    while (fgets(line, sizeof line, stdin))
        if (write(fd, line, strlen(line)) < 0)
            return 1;
    shutdown(fd, SHUT_WR);
    ssize_t size;
    while ((size = read(fd, line, sizeof line)) > 0)
        fwrite(line, 1, size, stdout);
    return 0;
}
