/* A low-level runtime for tests: writes down how it was called, as JSON, into $RECORD, and exits with $RECORD_EXIT.
   With no RECORD it does nothing, and is the static stub that bench/ measures against. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

extern char **environ;

static void text(FILE *out, const char *s)
{
    fputc('"', out);
    for (; *s; s++)
        if (*s == '"' || *s == '\\' || (unsigned char)*s < 0x20 || (unsigned char)*s > 0x7e)
            fprintf(out, (unsigned char)*s < 0x80 ? "\\u00%02x" : "\\udc%02x", (unsigned char)*s);
        else
            fputc(*s, out);
    fputc('"', out);
}

static void list(FILE *out, char **items)
{
    fputc('[', out);
    for (int i = 0; items[i]; i++) {
        if (i)
            fputc(',', out);
        text(out, items[i]);
    }
    fputc(']', out);
}

static void status(FILE *out)
{
    char line[256];
    FILE *in = fopen("/proc/self/status", "re");
    while (in && fgets(line, sizeof line, in))
        if (!strncmp(line, "Sig", 3) || !strncmp(line, "Umask", 5)) {
            char *value = strchr(line, ':');
            *value++ = 0;
            value[strcspn(value, "\n")] = 0;
            fprintf(out, "\"%s\":\"%s\",", line, value + 1);
        }
    if (in)
        fclose(in);
}

int main(int argc, char **argv)
{
    (void)argc;
    const char *path = getenv("RECORD"), *code = getenv("RECORD_EXIT");
    if (!path)
        return 0;
    char cwd[4096] = "";
    if (!getcwd(cwd, sizeof cwd))
        return 99;
    DIR *dir = opendir("/proc/self/fd");
    struct dirent *entry;
    int fds[256], count = 0;
    while (dir && count < 256 && (entry = readdir(dir)))
        if (entry->d_name[0] != '.' && atoi(entry->d_name) != dirfd(dir))
            fds[count++] = atoi(entry->d_name);
    if (dir)
        closedir(dir);
    FILE *out = fopen(path, "we");
    if (!out)
        return 98;
    fputs("{\"argv\":", out);
    list(out, argv);
    fputs(",\"env\":", out);
    list(out, environ);
    fputs(",\"cwd\":", out);
    text(out, cwd);
    fprintf(out, ",\"pid\":%d,", (int)getpid());
    status(out);
    fputs("\"fds\":[", out);
    for (int i = 0; i < count; i++)
        fprintf(out, "%s%d", i ? "," : "", fds[i]);
    fputs("]", out);
    for (int fd = 0; fd < 3 && getenv("RECORD_STREAMS"); fd++) { /* else a pipe would make each record another */
        struct stat st;
        if (!fstat(fd, &st))
            fprintf(out, ",\"stream %d\":[%lu,%lu,%d]", fd, st.st_dev, st.st_ino, fcntl(fd, F_GETFL));
    }
    fputs("}\n", out);
    if (fclose(out))
        return 97;
    return code ? atoi(code) : 0;
}
