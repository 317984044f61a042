/* A stranger's program that bears an engine's name: it waits where the stranger starts it, and leaves a marker where
 * anybody else executes it. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

int main(void) {
  if (getenv("STRANGER"))
    for (;;) pause();
  int fd = open(MARKER, O_WRONLY | O_CREAT, 0600);
  return fd < 0 || write(fd, "executed\n", 9) != 9;
}
