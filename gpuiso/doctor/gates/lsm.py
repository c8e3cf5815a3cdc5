# SPDX-License-Identifier: Apache-2.0
"""The gate of the security modules, which the kernel asks after the device filters (fs/namei.c, inode_permission()).

What a policy says is not evaluated here: a confined process gets "unknown" with the names that a policy tool needs. Of
Landlock nothing can be seen from outside, so it gets no gate.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuiso.doctor.gates.model import Gate
from gpuiso.errors import Unknown
from gpuiso.host.protocol import Host

__all__ = ["lsm_gates"]

#: Domains that SELinux's targeted policy lets at every device.
_FREE_DOMAINS = frozenset({"unconfined_t", "spc_t", "kernel_t", "unconfined_service_t"})
#: AppArmor profiles of container engines that name no device nodes.
_FREE_PROFILES = frozenset({"docker-default", "containers-default", "cri-containerd.apparmor.d", "unconfined"})


def lsm_gates(host: Host, pid: int, path: str) -> Iterator[Gate]:
    """A gate for each security module that confines the process; none where none does."""
    label = _text(host, f"/proc/{pid}/attr/current").strip("\0\n ")
    if _text(host, "/sys/fs/selinux/enforce").strip() == "1":
        yield from _selinux(host, pid, path, label)
    elif label.endswith(" (enforce)"):
        yield _apparmor(path, label.removesuffix(" (enforce)"))


def _text(host: Host, path: str) -> str:
    try:
        return host.text(path) or ""
    except Unknown:
        return ""  # no such module here (EINVAL), or not recorded


def _selinux(host: Host, pid: int, path: str, label: str) -> Iterator[Gate]:
    fields = label.split(":")
    domain = fields[2] if len(fields) > 2 else label
    if domain in _FREE_DOMAINS or not domain:
        return
    try:
        raw = host.getxattr(f"/proc/{pid}/root{path}", "security.selinux")
    except Unknown:
        raw = None
    node = (raw or b"of unknown type").rstrip(b"\0").decode("utf-8", "replace")
    says = f"domain {domain}, node {node}: enforcing, and its policy is not evaluated here"
    yield Gate("lsm", path, "unknown", "SELinux", says)


def _apparmor(path: str, profile: str) -> Gate:
    if profile.split("//")[0] in _FREE_PROFILES:
        return Gate("lsm", path, "allow", "AppArmor", f"profile {profile} says nothing about device nodes")
    return Gate("lsm", path, "unknown", "AppArmor", f"profile {profile} is enforced, and not evaluated here")
