"""Build a simulated GPU host, and change its behaviour afterwards.

Out of scope: a driver that does anything. Needs root (for mknod), gcc and ldconfig.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional, Union

from fakehost import compiled, kernel, layouts, tree
from fakehost.gpus import Division, Gpu, MigRequest, adopt, describe, divisions, set_mig, table
from fakehost.trouble import Trouble

HINT = (
    "# behaviours: delay_ms = N, hang = 1, fail = NVML_ERROR, fail_gpu = INDEX NVML_ERROR, fail_links = NVML_ERROR\n"
    "# at once, also where NVML is open: lost = INDEX NVML_ERROR, hang_gpu = INDEX 1, no_events = INDEX NVML_ERROR,\n"
    "# recovery = INDEX ACTION, rows = INDEX PENDING FAILED, lacks = FUNCTION NVML_ERROR,\n"
    "# fabric_state = INDEX STATE STATUS, no_reset = INDEX 1; events: fakehost.events\n"
)


@dataclass
class Host(Trouble):
    """A built host: `root` is its driver root, `dev_root` the directory whose dev/ holds the nodes."""

    root: str
    gpus: list[Gpu]
    driver: str
    module_version: str
    cuda: str
    libdir: str
    dev_root: str
    nodes: bool
    node_mode: int
    node_uid: int
    node_gid: int
    majors: dict[str, int]
    imex: int = 0
    layout: str = "debian"
    complete: bool = False
    mps: bool = False
    drm: bool = False
    modify: bool = True
    unloaded: tuple[str, ...] = ()
    behaviours: list[str] = field(default_factory=list)
    troubles: dict[str, str] = field(default_factory=dict)  # by what a line of fakehost.conf is about, its value
    bound: dict[str, tuple[Any, ...]] = field(default_factory=dict)  # by bus id, what is settled when it is bound
    divided: dict[str, str] = field(default_factory=dict)  # by place, the UUID of a MIG instance
    written: dict[str, Division] = field(default_factory=dict)  # what fakehost.conf was told last, by GPU's UUID

    @property
    def lib_path(self) -> str:
        """The directory of the driver's libraries, for LD_LIBRARY_PATH."""
        return f"{self.root}/{self.libdir}"

    @property
    def nvml(self) -> str:
        """The libnvidia-ml.so.1 of this host."""
        return f"{self.lib_path}/libnvidia-ml.so.1"

    @property
    def conf(self) -> str:
        """The plain file that libnvidia-ml and libcuda read at every start."""
        return f"{self.root}/etc/fakehost.conf"

    def node(self, name: str) -> str:
        """Return the path of a device node, such as "nvidia0" or "nvidia-caps/nvidia-cap1"."""
        return f"{self.dev_root}/dev/{name}"

    def install(self, compile_cache: str) -> None:
        """Put every file in place; `build` calls this."""
        os.makedirs(self.root, exist_ok=True)
        tree.lay_out(self.root)
        tree.write_firmware(f"{self.root}/{layouts.firmware(self.layout)}", self.driver)
        tree.write_socket(f"{self.root}/run/nvidia-persistenced")
        if self.mps:
            tree.write_mps(self.root)
        libdir32, bindir = layouts.libdir32(self.libdir), layouts.bindir(self.layout, self.libdir)
        compiled.install_programs(f"{self.root}/{bindir}", compile_cache, self.complete)
        compiled.install_libraries(self.lib_path, self.driver, compile_cache, self.complete)
        compiled.install_libraries32(f"{self.root}/{libdir32}", self.driver)
        layouts.write_firmware_path(self.root, self.layout)
        layouts.write_data(self.root, self.layout, self.libdir, self.complete)
        if self.layout == "nixos":
            layouts.link_store(self.root, self.libdir)
        if self.layout not in layouts.WITHOUT_CACHE:
            tree.write_loader_cache(self.root, (self.libdir, libdir32))
        self.update()

    def update(self) -> None:
        """Bring files, nodes and libraries in line with `gpus`, after a change to it.

        NVML first and the bindings last: with a real driver all change at once, and nobody sees a new binding beside
        an old answer.
        """
        with self._locked():
            self._update()

    def _update(self) -> None:
        self._adopt()
        files = (int(self.modify), self.node_uid, self.node_gid, self.node_mode)
        text = self._table()
        for name in ("libnvidia-ml.so", "libcuda.so"):
            compiled.bake(f"{self.lib_path}/{name}.{self.driver}", text)
        self._store_conf()
        again, kept = self._changes(files)
        tree.write_proc(self.root, self.gpus, self.driver, self.module_version, self.majors, files, kept)
        if self.unloaded:
            kernel.unload(self.root, self.unloaded)
        tree.write_sys(self.root, self.gpus)
        if self.drm:
            kernel.write_drm(self.root, self.dev_root, self.gpus)
        if self.nodes:
            self._make_nodes()
        tree.bind(self.root, self.gpus, again)

    def _changes(self, files: tuple[int, ...]) -> tuple[set[str], list[str]]:
        """Return which GPUs are bound again, since something settled then has changed; and which instances stay."""
        loaded = (self.module_version, tuple(sorted(self.majors.items())), files)
        bound = {gpu.pci: (gpu.minor, gpu.uuid, loaded) for gpu in self.gpus}
        again = {pci for pci, facts in bound.items() if self.bound.get(pci) != facts}
        places = self._places(self.gpus)
        standing = self._places(gpu for gpu in self.gpus if gpu.pci not in again)
        kept = [place for place, name in standing.items() if self.divided.get(place) == name]
        self.bound, self.divided = bound, places
        return again, kept

    @staticmethod
    def _places(gpus: Iterable[Gpu]) -> dict[str, str]:
        """Return what GPU instances and MIG devices are, by their places below proc/driver/nvidia/capabilities."""
        places = {}
        for gpu in gpus:
            base = f"gpu{gpu.minor}/mig/gi"
            places.update({f"{base}{made.gi}": f"{made.profile} {made.placement}" for made in gpu.instances})
            places.update({f"{base}{mig.gi}/ci{mig.ci}": mig.uuid + mig.profile for mig in gpu.mig})
        return places

    def adopt(self) -> None:
        """Take over into `gpus` what NVML has made of them since; any change of the host does so first."""
        with self._locked():
            self._adopt()

    def _adopt(self) -> None:
        with contextlib.suppress(FileNotFoundError), open(self.conf, encoding="utf-8") as file:
            text = file.read()
            alike = adopt(self.gpus, self.written, divisions(text))
            self.divided.update(self._places(alike))
            self.written.update({gpu.uuid: divisions(text)[gpu.uuid] for gpu in alike})

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep NVML from changing a GPU's division meanwhile."""
        fd = os.open(f"{self.root}/etc/fakehost.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def set_mig(self, index: int, devices: Iterable[MigRequest]) -> None:
        """Switch MIG on for one GPU and give it these devices; see `gpus.set_mig`."""
        set_mig(self.gpus[index], devices)
        self.update()

    def use(self, uuid: str, pid: int) -> None:
        """Let a process use a GPU or a MIG device, as a CUDA program does, until it ends."""
        os.makedirs(self.root + kernel.STORE, exist_ok=True)
        with open(f"{self.root}{kernel.STORE}/clients", "a", encoding="ascii") as file:
            file.write(f"{uuid} {pid}\n")

    def reset(self, index: int) -> None:
        """Reset a GPU: its pending MIG mode becomes the current one, and its instances are gone."""
        with self._locked():
            self._adopt()
            gpu = self.gpus[index]
            if gpu.mig_mode:
                gpu.mig_mode, gpu.mig, gpu.instances = (gpu.mig_mode[1],) * 2, [], []
            self._update()

    def behave(
        self,
        *,
        delay_ms: int = 0,
        hang: bool = False,
        fail: int = 0,
        fail_gpu: Optional[Mapping[int, int]] = None,
        fail_links: int = 0,
    ) -> None:
        """Set how NVML behaves from its next start on; what is not named goes back to normal.

        Args:
            delay_ms: milliseconds that nvmlInit takes.
            hang: nvmlInit never returns.
            fail: the NVML error that nvmlInit answers.
            fail_gpu: by GPU index on the host, the NVML error of every handle look-up.
            fail_links: the NVML error of every question about how GPUs are connected; 13 is a driver too old for it.
        """
        self.behaviours = [f"delay_ms = {delay_ms}", f"hang = {int(hang)}", f"fail = {fail}"]
        self.behaviours += [f"fail_links = {fail_links}"]
        self.behaviours += [f"fail_gpu = {index} {code}" for index, code in (fail_gpu or {}).items()]
        self._write_conf()

    def half_upgrade(self, new_module_version: str) -> None:
        """Let the loaded kernel module be of another version than the libraries."""
        self.module_version = new_module_version
        tree.write_version(self.root, new_module_version)

    def unload(self, *names: str) -> None:
        """Let the host be as after a boot: without these kernel modules and their nodes.

        Its own modprobe loads them. A later `update` brings the host back to this state.
        """
        self.unloaded = names
        self.update()

    def remove_node(self, name: str) -> None:
        """Remove one device node; `update`, or a refresh where the driver allows it, brings it back."""
        os.unlink(self.node(name))

    def _table(self) -> str:
        return f"{compiled.MARK}root = {self.root}\ndev = {self.dev_root}\ndriver = {self.driver}\n" + (
            f"cuda = {self.cuda}\n{table(self.gpus)}"
        )

    def _write_conf(self) -> None:
        with self._locked():
            self._adopt()
            self._store_conf()

    def _store_conf(self) -> None:
        lines = self.behaviours + self._lines()
        tree.write(self.conf, self._table() + HINT + "".join(line + "\n" for line in lines))
        self.written = divisions(self._table())

    @staticmethod
    def _owner(name: str) -> str:
        return {"nvidia-uvm": "nvidia_uvm", "nvidia-uvm-tools": "nvidia_uvm", "nvidia-modeset": "nvidia_modeset"}.get(
            name, "nvidia"
        )

    def _make_nodes(self) -> None:
        wanted = tree.nodes(self.gpus, self.majors, self.imex)
        for name in [name for name in wanted if self._owner(name) in self.unloaded or "nvidia" in self.unloaded]:
            del wanted[name]
            tree.remove(self.node(name))
        for name, (major, minor) in wanted.items():
            # The driver gives capability nodes modes of their own: only root may change MIG.
            caps = name.startswith("nvidia-caps/")
            mode = (0o400 if minor == 1 else 0o444) if caps else self.node_mode
            tree.make_node(self.node(name), major, minor, mode, self.node_uid, self.node_gid)
        for folder in ("", "nvidia-caps/"):
            os.makedirs(self.node(folder), exist_ok=True)
            for name in os.listdir(self.node(folder)):
                if re.fullmatch(r"nvidia(-cap)?\d+", name) and folder + name not in wanted:
                    self.remove_node(folder + name)


def build(
    root: str,
    gpus: Union[int, Sequence[Mapping[str, Any]]] = 2,
    *,
    driver: str = "535.183.01",
    module_version: Optional[str] = None,
    cuda: str = "12.2",
    mig: Any = None,
    libdir: Optional[str] = None,
    layout: str = "debian",
    complete: bool = False,
    mps: bool = False,
    nodes: bool = True,
    dev_root: Optional[str] = None,
    node_mode: int = 0o666,
    node_uid: int = 0,
    node_gid: int = 0,
    uvm_major: int = 508,
    caps_major: int = 237,
    imex: int = 0,
    drm: bool = False,
    modify: bool = True,
    compile_cache: str = compiled.CACHE,
) -> Host:
    """Build a host with GPUs below `root`, or bring the one that is there up to this description.

    Args:
        root: directory to build in, made if need be; never "/".
        gpus: how many, or one mapping per GPU in PCI order with what differs from the defaults of `Gpu`.
        driver: version of libraries and programs. A second build with another leaves the first one's files.
        module_version: the loaded kernel module's version, when it is another.
        cuda: CUDA version of the driver, "major.minor".
        mig: True for a default set of MIG devices on GPU 0, or {index: [profile or (gi, ci, profile[, uuid])]}.
        libdir: where the libraries go, below root; the layout's place by default.
        layout: where files are, one of layouts.py's.
        complete: also what newer drivers add to the default capabilities: an ICD of OpenCL, nvidia-imex, nvvm70.
        mps: whether an MPS control daemon runs.
        nodes: whether to make device nodes at all.
        dev_root: directory whose dev/ gets the nodes; root itself by default.
        node_mode: permissions of the nodes but for /dev/nvidia-caps.
        node_uid: owner of the nodes.
        node_gid: group of the nodes.
        uvm_major: the dynamic major of nvidia-uvm.
        caps_major: the dynamic major of nvidia-caps.
        imex: number of IMEX channels.
        drm: whether nvidia_drm is loaded: nodes below /dev/dri, beside one of another maker.
        modify: whether the driver allows its nodes to be made and changed (ModifyDeviceFiles).
        compile_cache: directory that keeps compiled files for the next host.

    Raises:
        RuntimeError: gcc or ldconfig fails, or device nodes cannot be made here.
        ValueError: the description contradicts itself.
    """
    root = os.path.realpath(root)
    if root == "/":
        raise ValueError("a simulated host is built in a directory of its own, not in /")
    majors = {"nvidia-uvm": uvm_major, "nvidia-caps": caps_major}
    if imex:
        majors["nvidia-caps-imex-channels"] = tree.CAPS_IMEX_MAJOR
    host = Host(
        root=root,
        gpus=describe(gpus, mig),
        driver=driver,
        module_version=module_version or driver,
        cuda=cuda,
        libdir=libdir or layouts.LIBDIRS[layout].format(driver=driver),
        layout=layout,
        complete=complete,
        mps=mps,
        dev_root=os.path.realpath(dev_root) if dev_root else root,
        nodes=nodes,
        node_mode=node_mode,
        node_uid=node_uid,
        node_gid=node_gid,
        majors=majors,
        imex=imex,
        drm=drm,
        modify=modify,
    )
    host.install(compile_cache)
    return host
