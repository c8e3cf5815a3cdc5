# SPDX-License-Identifier: Apache-2.0
"""The user that a workload runs as, and for whom its GPUs are leased."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass

from gpuiso.errors import NotFound, NotPermitted
from gpuiso.host import process
from gpuiso.host.protocol import Host
from gpuiso.kernel.capability import CAP_SYS_ADMIN

__all__ = ["Account", "become", "find_account", "require_privilege"]


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

    :raises NotFound: there is no such user.
    """
    if name is not None:
        return _account(_entry(name), switch=True)
    caller = environ.get("SUDO_UID", "")
    uid = int(caller) if os.getuid() == 0 and caller.isascii() and caller.isdigit() else os.getuid()
    try:
        return _account(pwd.getpwuid(uid), switch=False)
    except KeyError:
        return Account(uid, os.getgid(), str(uid), "/", "/bin/sh", frozenset())


def _entry(name: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwuid(int(name)) if name.isascii() and name.isdigit() else pwd.getpwnam(name)
    except (KeyError, OverflowError) as error:
        raise NotFound(f"there is no user {name} here") from error


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
