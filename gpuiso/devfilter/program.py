# SPDX-License-Identifier: Apache-2.0
"""The device program of a policy."""

from __future__ import annotations

from gpuiso.devfilter.assemble import TooLarge
from gpuiso.devfilter.compile import compile_rules
from gpuiso.devfilter.insn import Insn
from gpuiso.errors import NotSupported
from gpuiso.policy.resolve import ResolvedPolicy

__all__ = ["to_program"]


def to_program(policy: ResolvedPolicy) -> tuple[Insn, ...]:
    """The instructions of a BPF_PROG_TYPE_CGROUP_DEVICE program. :raises NotSupported: the rules are too many."""
    try:
        return compile_rules(policy.rules, default_allow=policy.default_allow)
    except TooLarge as error:
        raise NotSupported(f"{len(policy.rules)} rules are more than a device program can hold: {error}") from error
