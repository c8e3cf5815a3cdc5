# SPDX-License-Identifier: Apache-2.0
"""Whether a program can be attached to a cgroup beside what is there, without changing what others hold.

The kernel refuses beside a program that was attached alone (flags 0), here or above. Below a program attached with
BPF_F_ALLOW_OVERRIDE it does not refuse: it stops running that one for the cgroup, which would take a restriction
away (hierarchy_allows_attach and compute_effective_progs in kernel/bpf/cgroup.c).
"""

from __future__ import annotations

import errno

from gpuiso.apply.calls import Calls
from gpuiso.apply.target import Place, levels
from gpuiso.errors import NotPermitted, NotSupported
from gpuiso.kernel.bpf import BPF_F_ALLOW_MULTI, BPF_F_ALLOW_OVERRIDE

__all__ = ["check_attachable"]


def check_attachable(calls: Calls, place: Place) -> None:
    """:raises NotSupported: a program in the way, named; or no device programs in this kernel.

    :raises NotPermitted: the caller may not look.
    """
    for path in levels(place.cgroup):
        try:
            with calls.cgroup(place.mount, path) as directory:
                query = calls.prog_query(directory)
        except FileNotFoundError:
            return  # not made yet, nor is anything below it
        except PermissionError as error:
            raise NotPermitted(
                f"the device programs of {place.mount}{path} may not be looked at",
                hint="it needs CAP_BPF and CAP_NET_ADMIN, or CAP_SYS_ADMIN: run it as root",
            ) from error
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOSYS):
                raise NotSupported("this kernel has no BPF_CGROUP_DEVICE programs (CONFIG_CGROUP_BPF)") from error
            raise
        if not query.ids or query.attach_flags & BPF_F_ALLOW_MULTI:
            continue
        programs = ", ".join(str(number) for number in query.ids)
        if path == place.cgroup or not query.attach_flags & BPF_F_ALLOW_OVERRIDE:
            raise NotSupported(
                f"program {programs} at {place.mount}{path} was attached without BPF_F_ALLOW_MULTI: "
                "the kernel allows no other beside or below it",
                hint="whoever attached it has to attach it with that flag",
            )
        raise NotSupported(
            f"program {programs} at {place.mount}{path} was attached with BPF_F_ALLOW_OVERRIDE: "
            "a program below it would switch it off",
            hint="whoever attached it has to attach it with BPF_F_ALLOW_MULTI",
        )
