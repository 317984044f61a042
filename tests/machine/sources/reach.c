/* Connect to a socket of the host's: `reach PATH` says how that went. With `-l`, make one there and listen on it. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    struct sockaddr_un place = {.sun_family = AF_UNIX};
    int listens = argc == 3 && strcmp(argv[1], "-l") == 0, fd = socket(AF_UNIX, SOCK_STREAM, 0), failed;

    if (argc != 2 + listens || strlen(argv[argc - 1]) >= sizeof place.sun_path)
        return 2;
    strcpy(place.sun_path, argv[argc - 1]);
    failed = (listens ? bind : connect)(fd, (struct sockaddr *)&place, sizeof place);
    failed = failed || (listens && listen(fd, 1));
    printf("%s: %s\n", listens ? "listens" : "reached", failed ? strerror(errno) : place.sun_path);
    fflush(stdout);
    while (listens && !failed)
        pause();
    return failed != 0;
}
