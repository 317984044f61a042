"""Start gpushim's code on the system's bare Python (`python3 -IBS stub.py WHAT ...`).

A script is compiled at each start, a module once: this file stays tiny. `create` runs without
site-packages; `refresh` adds the directory of private dependencies beside the source root.
"""

import gc
import sys

root = __file__.rpartition("/gpushim/")[0] or "."
sys.path.insert(0, root)
if sys.argv[1] == "create":
    gc.disable()  # it ends in execve soon; collecting would be 4 % of it
    from gpushim.create import main
else:
    from gpushim.inventory.refresh import main

    sys.path += [root + "/vendor", root + "/../vendor"]
main(sys.argv[2:])
