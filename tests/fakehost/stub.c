/* The body of every driver library that only has to be there and to load. */
__attribute__((visibility("default"))) int fakehost_stub(void)
{
    return 0;
}
