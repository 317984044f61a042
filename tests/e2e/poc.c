/* A library that an image wants to smuggle into a process of the host: it leaves a file where only the host can.
   As LD_AUDIT it must also answer the loader's question for a version (rtld-audit(7)). */
#include <fcntl.h>
#include <unistd.h>

__attribute__((constructor)) static void leave(void)
{
    close(open(MARKER, O_CREAT | O_WRONLY, 0600));
}

unsigned la_version(unsigned version)
{
    leave();
    return version;
}
