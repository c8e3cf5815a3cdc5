# SPDX-License-Identifier: Apache-2.0
"""The device programs of a cgroup on the running machine, asked of the kernel with bpf(2)."""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Callable
from typing import TypeVar

from gpuiso.errors import Unknown
from gpuiso.host.protocol import DeviceProgram
from gpuiso.kernel.bpf import prog_get_fd_by_id, prog_info, prog_query
from gpuiso.kernel.openat2 import RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS, RESOLVE_NO_XDEV, openat2

__all__ = ["query_device_programs", "query_in_tree"]

_T = TypeVar("_T")
_BENEATH = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV

_RETRIES = 20  # how often programs may be replaced under our eyes before we give up


def query_device_programs(directory: str, cgroup: str) -> tuple[DeviceProgram, ...] | None:
    """The programs attached to the cgroup at ``directory``, in the order they run; None if there is no such cgroup.

    :raises Unknown: not permitted to ask (CAP_BPF with CAP_NET_ADMIN, or CAP_SYS_ADMIN), or no BPF_CGROUP_DEVICE
        in this kernel.
    """
    what = f"device programs of {cgroup}"
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unknown(what, os.strerror(error.errno or 0)) from error
    return _asked(fd, what, _programs)


def query_in_tree(mount: str, root: str, cgroup: str) -> tuple[DeviceProgram, ...] | None:
    """The same for a cgroup by its path in the v2 tree, of which the part from ``root`` on is mounted at ``mount``.

    The top of the mounted tree is asked for what is in effect there as well, so that programs of cgroups above it,
    which a cgroup namespace hides, are not taken for none.

    :raises Unknown: also where the cgroup lies outside of what is mounted, is covered by another mount, or where
        programs above the top of the tree are in effect.
    """
    what = f"device programs of {cgroup}"
    inside = posixpath.relpath(cgroup, root)
    if inside == ".." or inside.startswith("../") or ".." in cgroup.split("/"):
        raise Unknown(what, f"it lies outside of the part of the cgroup tree that is mounted here ({root} on {mount})")
    try:
        top = os.open(mount, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise Unknown(what, f"the cgroup tree cannot be reached: {mount}: {os.strerror(error.errno or 0)}") from error
    try:
        fd = openat2(top, inside, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, resolve=_BENEATH)
    except FileNotFoundError:
        _asked(os.open(mount, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), what, prog_query)
        return None
    except OSError as error:
        why = "another mount covers it" if error.errno == errno.EXDEV else os.strerror(error.errno or 0)
        raise Unknown(what, why) from error
    finally:
        os.close(top)
    return _asked(fd, what, _programs_of_top if inside == "." else _programs)


def _asked(fd: int, what: str, question: Callable[[int], _T]) -> _T:
    """The answer to ``question`` about a directory, which is closed."""
    try:
        for _ in range(_RETRIES):
            try:
                return question(fd)
            except FileNotFoundError:
                continue  # a program was replaced between the query and the look at it
        raise Unknown(what, f"they were replaced {_RETRIES} times while being read")
    except PermissionError as error:
        raise Unknown(what, "not permitted to ask (needs CAP_BPF and CAP_NET_ADMIN, or CAP_SYS_ADMIN)") from error
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise Unknown(what, "this kernel has no BPF_CGROUP_DEVICE programs") from error
        if error.errno == errno.EBADF:
            raise Unknown(what, "the cgroup tree is hidden: what is mounted in its place is no cgroup v2") from error
        raise Unknown(what, str(error)) from error
    finally:
        os.close(fd)


def _programs_of_top(directory_fd: int) -> tuple[DeviceProgram, ...]:
    before = prog_query(directory_fd).ids
    effective = prog_query(directory_fd, effective=True).ids
    attached = _programs(directory_fd)
    above = set(effective).difference(before, (program.id for program in attached))
    if above:
        numbers = ", ".join(str(number) for number in sorted(above))
        why = f"programs of cgroups above it are in effect, which cannot be seen from here: {numbers}"
        raise Unknown("device programs of the top of the cgroup tree that is seen", why)
    return attached


def _programs(directory_fd: int) -> tuple[DeviceProgram, ...]:
    query = prog_query(directory_fd)
    return tuple(_program(number, query.attach_flags) for number in query.ids)


def _program(number: int, attach_flags: int) -> DeviceProgram:
    fd = prog_get_fd_by_id(number)
    try:
        info = prog_info(fd)
    finally:
        os.close(fd)
    return DeviceProgram(info.id, info.name, info.tag, attach_flags, info.insns)
