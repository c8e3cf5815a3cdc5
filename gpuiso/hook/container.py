# SPDX-License-Identifier: Apache-2.0
"""createContainer: what a GPU container needs in its root filesystem, in one process.

The work is that of the hooks of NVIDIA's container toolkit (internal/discover/hooks.go): create-symlinks,
enable-cuda-compat, update-ldcache, disable-device-node-modification, update-application-profile and chmod.
It runs in the container's namespaces, with the mounts made and the host's root still at ``/``.
"""

from __future__ import annotations

import errno
import os

from gpuiso.hook.arguments import ContainerWork
from gpuiso.hook.cover import cover
from gpuiso.hook.errors import HookError
from gpuiso.hook.ldcache import add_libraries, flags_of
from gpuiso.hook.rootfs import Held, Rootfs
from gpuiso.hook.state import State, read_config, rootfs_path, visible_gpus
from gpuiso.hook.undo import Undo
from gpuiso.kernel.mount_fd import fchmodat2

__all__ = ["prepare_container"]

PARAMS = "/proc/driver/nvidia/params"
_CACHE = "/etc/ld.so.cache"
_CONF_D = "/etc/ld.so.conf.d"
_CONF = f"{_CONF_D}/00-gpuiso.conf"
_PROFILE = "/etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf"
_CACHE_LIMIT = 16 << 20
# Where ld.so looks without being told (glibc, elf/dl-load.c, with Debian's multiarch directories).
_USUAL = ("/lib", "/usr/lib", "/lib64", "/usr/lib64")


def prepare_container(state: State, work: ContainerWork, undo: Undo) -> None:
    """All of ``work``. :raises HookError: and OSError, with ``undo`` knowing what was done by then."""
    config = read_config(state.bundle)
    rootfs = Rootfs(rootfs_path(state, config), undo)
    step = "open the root filesystem"
    try:
        for target, path in work.links:
            step = f"link {path}"
            rootfs.symlink(target, path)
        compat = _compat_libraries(rootfs, work) if work.driver_version is not None else []
        libraries = compat + [(name, f"{directory}/{name}") for directory, names in work.libraries for name in names]
        if libraries:
            step = "update ld.so.cache"
            _update_cache(rootfs, libraries)
            step = f"write {_CONF}"
            _write_conf(rootfs, work, compat)
        for mode, path in work.modes:
            step = f"change the mode of {path}"
            _chmod(rootfs, path, mode)
        if work.profile and (gpus := visible_gpus(config)):
            step = f"write {_PROFILE}"
            rootfs.write(_PROFILE, _profile(gpus))
        if work.hide_modification:
            step = f"cover {PARAMS}"
            _hide_modification(rootfs)
    except OSError as error:
        where = f" ({error.filename})" if error.filename and str(error.filename) not in step else ""
        raise HookError(f"cannot {step} in the container{where}: {error.strerror}") from error


def _compat_libraries(rootfs: Rootfs, work: ContainerWork) -> list[tuple[str, str]]:
    """The libraries of the image's compatibility package, if its driver is of a later branch than the host's."""
    place = work.compat_root
    names = rootfs.names(place)
    image = max((_branch(name.removeprefix("libcuda.so.")) for name in names if _is_versioned_cuda(name)), default=0)
    if image <= _branch(work.driver_version or ""):
        return []
    return [(name, f"{place}/{name}") for name in sorted(names) if _is_soname(name)]


def _is_versioned_cuda(name: str) -> bool:
    return name.startswith("libcuda.so.") and "." in name.removeprefix("libcuda.so.")


def _is_soname(name: str) -> bool:
    stem, _, version = name.rpartition(".so.")
    return stem.startswith("lib") and version.isascii() and version.isdigit()


def _branch(version: str) -> int:
    """550 of 550.54.15; 0 for what is no version."""
    major = version.partition(".")[0]
    return int(major) if major.isascii() and major.isdigit() and len(major) < 6 else 0


def _update_cache(rootfs: Rootfs, libraries: list[tuple[str, str]]) -> None:
    old = rootfs.read(_CACHE, _CACHE_LIMIT)
    new = add_libraries(old, libraries, flags_of(os.uname().machine))
    if new == old:
        return
    try:
        rootfs.write(_CACHE, new)
    except OSError as error:
        if error.errno != errno.EROFS or not cover(rootfs, _CACHE, new):
            raise


def _write_conf(rootfs: Rootfs, work: ContainerWork, compat: list[tuple[str, str]]) -> None:
    """For an ldconfig that the container runs later: without this its new cache lacks the unusual directories."""
    directories = [work.compat_root] if compat else []
    directories += [directory for directory, _ in work.libraries if not _is_usual(directory)]
    if not directories or "00-gpuiso.conf" in (names := rootfs.names(_CONF_D)) or not names:
        return
    try:
        rootfs.write(_CONF, "".join(f"{directory}\n" for directory in directories).encode())
    except OSError as error:
        if error.errno != errno.EROFS:  # then ldconfig cannot run in there either
            raise


def _is_usual(directory: str) -> bool:
    above, _, name = directory.rpartition("/")
    return directory in _USUAL or (above in _USUAL and name.endswith("-linux-gnu"))


def _chmod(rootfs: Rootfs, path: str, mode: int) -> None:
    try:
        fd = rootfs.open(path, os.O_PATH)
    except (FileNotFoundError, NotADirectoryError):
        return
    held = Held(fd)
    old = os.fstat(held.fd).st_mode & 0o7777
    if old != mode:
        _set_mode(held.fd, mode)
        rootfs.undo.on_failure(lambda: _set_mode(held.fd, old))


def _set_mode(fd: int, mode: int) -> None:
    try:
        fchmodat2(fd, mode)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        os.chmod(f"/proc/self/fd/{fd}", mode)  # before v6.6; the link leads to what the descriptor holds


def _profile(gpus: list[int]) -> bytes:
    """Which GPUs EGL may show, as a mask of minor numbers."""
    mask = sum(1 << number for number in gpus)
    setting = f'{{"name": "_container_", "settings": ["EGLVisibleDGPUDevices", {mask:#x}]}}'
    return f'{{"profiles": [{setting}], "rules": [{{"pattern": [], "profile": "_container_"}}]}}\n'.encode()


def _hide_modification(rootfs: Rootfs) -> None:
    """A driver library that reads ``ModifyDeviceFiles: 1`` makes the nodes of all GPUs, where it may."""
    try:
        with open(PARAMS, "rb") as file:
            params = file.read(1 << 20)
    except FileNotFoundError:
        return
    lines = params.split(b"\n")
    wanted = [b"ModifyDeviceFiles: 0" if line.startswith(b"ModifyDeviceFiles:") else line for line in lines]
    if wanted != lines:
        cover(rootfs, PARAMS, b"\n".join(wanted))
