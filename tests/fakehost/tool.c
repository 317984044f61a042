/* The body of every driver program that only has to be there and to start. */
#include <stdio.h>

int main(int argc, char **argv)
{
    (void)argc;
    printf("%s (simulated)\n", argv[0]);
    return 0;
}
