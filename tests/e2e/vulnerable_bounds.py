"""More of vulnerable.py: bounds on what an image has, and the kernel's limits behind them."""

from __future__ import annotations

from e2e import test_bounds, test_confine
from e2e.vulnerable import Build

BOUNDS = "shim/gpushim/bounds.py"
BRINGS = test_bounds.test_what_an_image_brings
SAID = "(said in log) == "
# Both together are what once took ten seconds.
LARGE = (BOUNDS, "LOADER_CACHE = 2 << 20", "LOADER_CACHE = 16 << 20")
EQUAL = (BOUNDS, "CACHE_EQUAL = 128", "CACHE_EQUAL = 1 << 30")
CHEAP = "assert done."  # time or memory, whichever is seen first

BUILDS = {
    "T-bounds reads a loader's cache of any size": Build(
        [
            (
                "hook/gpuhook/finish.py",
                'self.read("/etc/ld.so.cache", bounds.LOADER_CACHE)',
                'self.read("/etc/ld.so.cache", 1 << 40)',
            )
        ],
        BRINGS,
        SAID,
        {"name": "LOADER_CACHE"},
    ),
    "T-bounds takes any number of equal names": Build(
        [("hook/gpuhook/ldcache.py", "        if high - low > bounds.CACHE_EQUAL:", "        if False:")],
        BRINGS,
        SAID,
        {"name": "CACHE_EQUAL"},
    ),
    "T-bounds takes numbers of any length": Build(
        [("hook/gpuhook/ldcache.py", "        if at == end:", "        if False:")],
        BRINGS,
        SAID,
        {"name": "CACHE_DIGITS"},
    ),
    "T-bounds a large cache of equal names": Build(
        [LARGE, EQUAL], test_bounds.test_an_image_whose_names_are_all_one, CHEAP
    ),
    "T-bounds walks links without end": Build(
        [("hook/gpuhook/walk.py", "        if left < 0:  # 40 links", "        if False:  # 40 links")],
        BRINGS,
        SAID,
        {"name": "WORDS"},
    ),
    "T-bounds a hook without limits": Build(
        [("hook/gpuhook/prestart.py", "    confine(options.log)\n", "")],
        test_confine.test_a_bound_that_is_missing,
        "done.code == 16",
        {"memory": "512 << 20"},
    ),
    "T-bounds a refresh with the hook's limits": Build(
        [
            (
                "hook/gpuhook/standalone.py",
                "    started = time.monotonic()\n",
                "    started = time.monotonic()\n    confine()\n",
            )
        ],
        test_confine.test_a_refresh_has_no_limits_of_the_hooks,
        "max(started) < min(limited)",
    ),
    "T-bounds a limit that is a bug": Build(
        [
            (
                "hook/gpuhook/prestart.py",
                "    except MemoryError:\n        code = ROOTFS\n        say(str(exhausted()))\n",
                "",
            )
        ],
        test_confine.test_a_bound_that_is_missing,
        "done.code == 16",
        {"memory": "64 << 20"},
    ),
}
