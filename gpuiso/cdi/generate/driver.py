# SPDX-License-Identifier: Apache-2.0
"""The files of an NVIDIA driver that containers need: libraries, programs, firmware, sockets, configuration.

Which files these are follows pkg/nvcdi/driver-nvml.go and internal/discover of NVIDIA's container toolkit.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass

from gpuiso.cdi.generate.ldcache import parse_ldcache
from gpuiso.cdi.generate.root import Root
from gpuiso.cdi.spec import Mount
from gpuiso.errors import BadInput, NotFound

__all__ = [
    "DriverFiles",
    "Link",
    "depth_and_path",
    "environment_path",
    "find_driver",
    "first_program",
    "library_directories",
    "parent_directories",
    "userland_versions",
]

_READ_ONLY = ("ro", "nosuid", "nodev", "rbind", "rprivate")
_SOCKET = ("nosuid", "nodev", "rbind", "rprivate", "noexec")

_LIBRARY_DIRECTORIES = (
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/lib64",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/lib/x86_64-linux-gnu/nvidia/current",
    "/lib/aarch64-linux-gnu/nvidia/current",
)
# What every driver has: where these are, the others are.
_LEADERS = ("libcuda.so.", "libnvidia-ml.so.")
# Libraries of the driver whose names do not carry its version.
_OWN_VERSIONS = ("libnvidia-nvvm70.so.*",)
_GRAPHICS_OWN_VERSIONS = tuple(f"libnvidia-egl-{name}.so.*.*" for name in ("gbm", "wayland", "wayland2", "xcb", "xlib"))
_PROGRAMS = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-imex",
    "nvidia-imex-ctl",
)
_GRAPHICS_PROGRAMS = ("nvidia-xconfig",)
_PROGRAM_DIRECTORIES = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_SOCKETS = ("nvidia-persistenced/socket", "nvidia-fabricmanager/socket")
_CONFIGS = (
    "glvnd/egl_vendor.d/10_nvidia.json",
    "egl/egl_external_platform.d/15_nvidia_gbm.json",
    "egl/egl_external_platform.d/10_nvidia_wayland.json",
    "egl/egl_external_platform.d/09_nvidia_wayland2.json",
    "egl/egl_external_platform.d/20_nvidia_xcb.json",
    "egl/egl_external_platform.d/20_nvidia_xlib.json",
    "nvidia/nvoptix.bin",
    "X11/xorg.conf.d/10-nvidia.conf",
    "X11/xorg.conf.d/nvidia-drm-outputclass.conf",
    "OpenCL/vendors/nvidia.icd",
)
_VULKAN_CONFIGS = (
    "vulkan/icd.d/nvidia_icd.json",
    "vulkan/icd.d/nvidia_icd.x86_64.json",
    "vulkan/icd.d/nvidia_icd.aarch64.json",
    "vulkan/icd.d/nvidia_layers.json",
    "vulkan/implicit_layer.d/nvidia_layers.json",
)
_XORG = ("modules/drivers", "modules/extensions", "modules/updates/drivers", "modules/updates/extensions")


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link to make in the container."""

    target: str
    path: str


@dataclass(frozen=True, slots=True)
class DriverFiles:
    """``graphics_links`` and ``links`` are apart because the reference makes them by two hooks.

    ``directories`` hold the driver's own libraries, ``library_directories`` all that a container's linker
    must search.
    """

    version: str
    directories: tuple[str, ...]
    library_directories: tuple[str, ...]
    mounts: tuple[Mount, ...]
    graphics_links: tuple[Link, ...]
    links: tuple[Link, ...]


def find_driver(root: Root, version: str, kernel: str | None, *, graphics: bool) -> DriverFiles:
    """The files of the driver of this version below ``root``. ``kernel`` is the release that firmware is
    looked for.

    Raises NotFound if its libraries are nowhere.
    """
    directories = library_directories(root, version)
    if not directories:
        others = ", ".join(userland_versions(root))
        raise NotFound(
            f"the kernel module is NVIDIA {version}, but no libcuda.so.{version} was found",
            hint=f"libraries of {others} are installed: reboot, or reload the modules"
            if others
            else "install the driver's libraries, or name their place with --driver-root",
        )
    prefixes = _prefixes(directories)
    libraries = _libraries(root, directories, version, graphics=graphics)
    mounts = [_mount(root, path) for path in libraries]
    mounts += _programs(root, prefixes, _PROGRAMS + (_GRAPHICS_PROGRAMS if graphics else ()))
    mounts += _firmware(root, prefixes, version, kernel)
    mounts += _sockets(root)
    graphics_links: tuple[Link, ...] = ()
    if graphics:
        xorg = _xorg(root, directories, version)
        mounts += [_mount(root, path) for path in xorg]
        mounts += _configs(root)
        graphics_links = _graphics_links((*libraries, *xorg), version)
    unique = {mount.container_path: mount for mount in mounts}
    return DriverFiles(
        version=version,
        directories=directories,
        library_directories=parent_directories(libraries),
        mounts=tuple(sorted(unique.values(), key=lambda mount: depth_and_path(mount.container_path))),
        graphics_links=graphics_links,
        links=_library_links(root, libraries),
    )


def depth_and_path(path: str) -> tuple[int, str]:
    """The order in which the reference lists paths: what lies higher first."""
    return path.count("/"), path


def library_directories(root: Root, version: str) -> tuple[str, ...]:
    """Where the 64-bit libraries of the driver of this version lie, links resolved."""
    found: dict[str, None] = {}
    wanted = tuple(f"{leader}{version}" for leader in _LEADERS)
    for directory in _LIBRARY_DIRECTORIES:
        for path in root.glob(directory, *wanted):
            _add_directory(root, found, path, wanted)
    for path in _cached_leaders(root):
        _add_directory(root, found, path, wanted)
    return tuple(found)


def userland_versions(root: Root) -> tuple[str, ...]:
    """The driver versions whose libcuda is installed, whichever module is loaded."""
    paths = [path for directory in _LIBRARY_DIRECTORIES for path in root.glob(directory, "libcuda.so.*.*")]
    paths += [where for path in _cached_leaders(root) if (where := root.resolve(path)) is not None]
    matches = (re.search(r"/libcuda\.so\.(\d+\.\d+(?:\.\d+)?)\Z", path) for path in paths)
    return tuple(sorted({match[1] for match in matches if match is not None}))


def _add_directory(root: Root, found: dict[str, None], path: str, wanted: tuple[str, ...]) -> None:
    where = root.resolve(path)
    if where is not None and posixpath.basename(where) in wanted:
        found.setdefault(posixpath.dirname(where))


def _cached_leaders(root: Root) -> list[str]:
    data = root.read("/etc/ld.so.cache")
    if data is None:
        return []
    try:
        libraries = parse_ldcache(data, root.host_path("/etc/ld.so.cache"))
    except BadInput:
        return []  # a cache of another C library; the usual directories have been looked through
    return [lib.path for lib in libraries if lib.is_64_bit and lib.name.startswith(_LEADERS)]


def _prefixes(directories: tuple[str, ...]) -> tuple[str, ...]:
    """``/usr/local/nvidia`` of ``/usr/local/nvidia/lib64``: a driver with a tree of its own."""
    found = []
    for directory in directories:
        prefix, name = posixpath.split(directory)
        if name in ("lib", "lib64") and prefix not in ("/", "/usr"):
            found.append(prefix)
    return tuple(dict.fromkeys(found))


def _mount(root: Root, path: str, container_path: str | None = None, options: tuple[str, ...] = _READ_ONLY) -> Mount:
    return Mount(root.host_path(path), container_path or path, options)


def _libraries(root: Root, directories: tuple[str, ...], version: str, *, graphics: bool) -> tuple[str, ...]:
    patterns = (f"*.so.{version}", *_OWN_VERSIONS, *(_GRAPHICS_OWN_VERSIONS if graphics else ()))
    found: dict[str, None] = {}
    for directory in directories:
        for place in (directory, posixpath.join(directory, "vdpau")):
            for path in root.glob(place, *patterns):
                if (where := root.resolve(path)) is not None:
                    found.setdefault(where)
    return tuple(found)


def _library_links(root: Root, libraries: tuple[str, ...]) -> tuple[Link, ...]:
    """The SONAME and development links of the host beside each library, and three that programs rely on."""
    links: dict[str, str] = {}
    for library in libraries:
        directory, name = posixpath.split(library)
        stem = f"{name.partition('.so')[0]}.so"
        if stem == "libcuda.so":
            links[f"{directory}/libcuda.so"] = "libcuda.so.1"
        elif stem == "libGLX_nvidia.so":
            links[f"{directory}/libGLX_indirect.so.0"] = name
        elif stem == "libnvidia-opticalflow.so":
            links[f"{directory}/libnvidia-opticalflow.so"] = "libnvidia-opticalflow.so.1"
        for path in sorted(root.glob(directory, stem, f"{stem}.*"), key=len, reverse=True):
            node = root.lstat(path)
            if node is not None and node.target is not None and root.resolve(path) == library:
                target = node.target if "/" not in node.target else name
                links.setdefault(path, target)
    return tuple(Link(target, path) for path, target in links.items())


def _graphics_links(paths: tuple[str, ...], version: str) -> tuple[Link, ...]:
    links = []
    for path in paths:
        directory, name = posixpath.split(path)
        if name == f"libnvidia-allocator.so.{version}":
            links.append(Link("../libnvidia-allocator.so.1", f"{directory}/gbm/nvidia-drm_gbm.so"))
        elif name in (f"libnvidia-vulkan-producer.so.{version}", f"libglxserver_nvidia.so.{version}"):
            links.append(Link(name, f"{directory}/{name.removesuffix(f'.{version}')}"))
    return tuple(links)


def _xorg(root: Root, directories: tuple[str, ...], version: str) -> tuple[str, ...]:
    places = [
        place for directory in directories for place in (f"{directory}/nvidia/xorg", *_below(f"{directory}/xorg"))
    ]
    for base in ("/usr/lib/xorg", "/usr/lib64/xorg"):
        places += _below(base)
    found = []
    for name in ("nvidia_drv.so", f"libglxserver_nvidia.so.{version}"):
        first = next((path for place in places for path in root.glob(place, name)), None)
        if first is not None:
            found.append(first)
    return tuple(found)


def _below(base: str) -> tuple[str, ...]:
    return tuple(f"{base}/{part}" for part in _XORG)


def _programs(root: Root, prefixes: tuple[str, ...], names: tuple[str, ...]) -> list[Mount]:
    places = (*environment_path(root, "PATH"), *_PROGRAM_DIRECTORIES, *(f"{prefix}/bin" for prefix in prefixes))
    found = []
    for name in names:
        path = first_program(root, places, name)
        if path is not None:
            found.append(_mount(root, path))
    return found


def first_program(root: Root, places: tuple[str, ...], name: str) -> str | None:
    """The first file called ``name`` in ``places`` that may be executed."""
    for place in places:
        node = root.stat(f"{place}/{name}")
        if node is not None and node.type == "f" and node.mode & 0o111:
            return f"{place}/{name}"
    return None


def environment_path(root: Root, name: str) -> tuple[str, ...]:
    """The absolute directories of a variable such as PATH in this process's own environment, as the host
    shows it.
    """
    data = root.read("/proc/self/environ") if not root.prefix else None
    for entry in (data or b"").split(b"\0"):
        if entry.startswith(f"{name}=".encode()):
            value = entry.partition(b"=")[2].decode("utf-8", "replace")
            return tuple(posixpath.normpath(part) for part in value.split(":") if part.startswith("/"))
    return ()


def _firmware(root: Root, prefixes: tuple[str, ...], version: str, kernel: str | None) -> list[Mount]:
    """GSP firmware where the kernel's loader looks (admin-guide, firmware/fw_search_path), then beside the
    libraries.
    """
    own = (root.read("/sys/module/firmware_class/parameters/path") or b"").decode("utf-8", "replace").strip()
    places = [own] if own.startswith("/") else []
    if kernel is not None:
        places += [f"/lib/firmware/updates/{kernel}", "/lib/firmware/updates", f"/lib/firmware/{kernel}"]
    places += ["/lib/firmware", *(f"{prefix}/firmware" for prefix in prefixes)]
    for place in places:
        paths = root.glob(f"{place}/nvidia/{version}", "gsp*.bin")
        if paths:
            return [_mount(root, path) for path in paths]
    return []


def _sockets(root: Root) -> list[Mount]:
    found = []
    for name in _SOCKETS:
        path = next((path for path in (f"/run/{name}", f"/var/run/{name}") if root.stat(path) is not None), None)
        if path is not None:
            found.append(_mount(root, path, options=_SOCKET))
    mps = root.stat("/tmp/nvidia-mps")  # noqa: S108 - where the MPS control daemon puts its pipes
    if mps is not None and mps.type == "d":
        found.append(_mount(root, "/tmp/nvidia-mps", options=_SOCKET))  # noqa: S108
    return found


def _configs(root: Root) -> list[Mount]:
    data = environment_path(root, "XDG_DATA_DIRS") or ("/usr/local/share", "/usr/share")
    places = ("/etc", *data)
    found = []
    for name in _CONFIGS + _VULKAN_CONFIGS:
        path = next((f"{place}/{name}" for place in places if root.stat(f"{place}/{name}") is not None), None)
        if path is not None:
            found.append(_mount(root, path, f"/etc/{name}" if name in _VULKAN_CONFIGS else None))
    return found


def parent_directories(libraries: tuple[str, ...]) -> tuple[str, ...]:
    """The directories of the libraries among ``libraries``, each once, what lies higher first."""
    found = {posixpath.dirname(path) for path in libraries if re.search(r"/lib[^/]+\.so(?:\.[^/]*)?\Z", path)}
    return tuple(sorted(found, key=depth_and_path))
