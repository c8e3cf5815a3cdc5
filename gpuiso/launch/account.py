# SPDX-License-Identifier: Apache-2.0
"""The user that a workload runs as, and for whom its GPUs are leased."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass

from gpuiso.errors import BadInput, NotFound, NotPermitted
from gpuiso.host import process
from gpuiso.host.protocol import Host
from gpuiso.kernel.capability import CAP_SYS_ADMIN

__all__ = ["Account", "become", "find_account", "require_privilege"]

_MOST_UID = (1 << 32) - 2  # the one above is no user's (chown(2))
_NOGROUP = 65534  # the kernel's own for who has none (/proc/sys/kernel/overflowgid)
_DIGITS = len(str(_MOST_UID))


@dataclass(frozen=True)
class Account:
    """``groups`` are names. ``switch`` tells whether the workload is to run as this user (``--user``)."""

    uid: int
    gid: int
    name: str
    home: str
    shell: str
    groups: frozenset[str]
    switch: bool = False

    @property
    def variables(self) -> dict[str, str]:
        """What login(1) sets for a user."""
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name, "SHELL": self.shell}


def require_privilege(host: Host, user: str | None = None) -> None:
    """:raises NotPermitted: the caller cannot attach device programs, says why and what to do."""
    if process.status(host, os.getpid()).cap_eff >> CAP_SYS_ADMIN & 1:
        return
    name = user or _name_of(os.getuid())
    raise NotPermitted(
        "gpuiso run needs root (CAP_SYS_ADMIN): the kernel attaches device rules for nobody else, and the manager of "
        "a user's own systemd cannot hold them either (systemd.resource-control(5), DeviceAllow=)",
        hint=f"sudo gpuiso run --user {name} …; an administrator can allow just that in sudoers, and say in "
        "/etc/gpuiso/policy.d who may have which GPUs",
    )


def find_account(name: str | None, environ: Mapping[str, str]) -> Account:
    """The user of ``--user`` (a name or number), or the one who called: sudo(8) tells who that was.

    :raises NotFound: there is no such user. :raises BadInput: SUDO_UID is a number that no user has.
    """
    if name is not None:
        return _account(_entry(name), switch=True)
    caller = environ.get("SUDO_UID", "")
    uid = os.getuid()
    if uid == 0 and _is_number(caller):
        uid = _number(caller)
        if uid > _MOST_UID:
            raise BadInput(f"SUDO_UID is {_short(caller)}, which is no user's number")
    try:
        return _account(pwd.getpwuid(uid), switch=False)
    except KeyError:
        gid = os.getgid() if uid == os.getuid() else _NOGROUP
        return Account(uid, gid, str(uid), "/", "/bin/sh", frozenset())


def _entry(name: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwuid(_number(name)) if _is_number(name) else pwd.getpwnam(name)
    except (KeyError, OverflowError, ValueError) as error:  # ValueError: a NUL in a name
        raise NotFound(f"there is no user {_short(name)} here") from error


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _number(digits: str) -> int:
    """More digits than Python's int() takes are a number that no user has, too."""
    digits = digits.lstrip("0") or "0"
    return int(digits) if len(digits) <= _DIGITS else _MOST_UID + 1


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:40]}…"


def _account(entry: pwd.struct_passwd, *, switch: bool) -> Account:
    groups = frozenset(_group(gid) for gid in os.getgrouplist(entry.pw_name, entry.pw_gid))
    shell = entry.pw_shell or "/bin/sh"
    return Account(entry.pw_uid, entry.pw_gid, entry.pw_name, entry.pw_dir, shell, groups, switch)


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def become(account: Account) -> None:
    """Give up root for good. :raises NotPermitted: the kernel refuses."""
    try:
        os.initgroups(account.name, account.gid)
        os.setresgid(account.gid, account.gid, account.gid)
        os.setresuid(account.uid, account.uid, account.uid)
    except OSError as error:
        raise NotPermitted(f"cannot become {account.name}: {error.strerror}") from error
