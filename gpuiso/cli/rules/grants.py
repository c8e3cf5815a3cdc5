# SPDX-License-Identifier: Apache-2.0
"""What ``gpuiso rules check`` says of a file of grants: for whom each is, and what it comes to on a host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuiso.errors import BadInput

if TYPE_CHECKING:
    from rich.console import Console

    from gpuiso.grants.document import Grant
    from gpuiso.grants.units import Unit
    from gpuiso.policy.place import Remark

__all__ = ["GrantsChecked", "check_grants"]


@dataclass(frozen=True)
class GrantsChecked:
    """``units`` are those of the host, None where nothing was looked up."""

    grants: tuple[Grant, ...]
    units: tuple[Unit, ...] | None
    remarks: tuple[Remark, ...]
    errors: tuple[BadInput, ...]

    def as_json(self) -> list[dict[str, Any]]:
        return [
            {
                "line": grant.place.line,
                "users": sorted(grant.users),
                "groups": sorted(grant.groups),
                "slices": sorted(grant.slices),
                "containers": [_annotation(*pair) for pair in grant.containers],
                "gpus": None if self.units is None else [unit.id for unit in self._given(grant)],
                "most": grant.most,
                "gpu.max": None if grant.gpu_max is None else str(grant.gpu_max),
                "share": grant.share,
            }
            for grant in self.grants
        ]

    def print(self, console: Console) -> None:
        """A table, a line a grant."""
        from rich.table import Table
        from rich.text import Text

        if not self.grants:
            console.print("no grants: nobody but root gets a GPU")
            return
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name in ("line", "for", "GPUs", "at most", "gpu.max", "--share"):
            table.add_column(name, overflow="fold")
        for grant in self.grants:
            cells = (
                str(grant.place.line or ""),
                _for_whom(grant),
                self._words(grant),
                "" if grant.most is None else str(grant.most),
                "" if grant.gpu_max is None else str(grant.gpu_max),
                "no" if grant.share is False else "yes",
            )
            table.add_row(*map(Text, cells))
        console.print(table)

    def _given(self, grant: Grant) -> Sequence[Unit]:
        from gpuiso.grants.spec import matching

        units = self.units or ()
        if grant.gpus is None:
            return units
        return list(dict.fromkeys(unit for item in grant.gpus for unit in matching(item, units)))

    def _words(self, grant: Grant) -> str:
        if grant.gpus is None:
            return "all"
        if self.units is None:
            return ", ".join(grant.gpus) or "none"
        return ", ".join(unit.label for unit in self._given(grant)) or "none of this host"


def _for_whom(grant: Grant) -> str:
    words = [f"user {name}" if name != "*" else "every user but root" for name in sorted(grant.users)]
    words += [f"group {name}" for name in sorted(grant.groups)]
    words += [f"slice {name}" for name in sorted(grant.slices)]
    words += [f"container {_annotation(*pair)}" if pair[0] != "*" else "every container" for pair in grant.containers]
    return ", ".join(words)


def _annotation(key: str, value: str | None) -> str:
    return key if value is None else f"{key}={value}"


def check_grants(file: str, text: str, record: str | None, *, syntax: bool) -> GrantsChecked:
    """A file of /etc/gpuiso/policy.d. A GPU that this host does not have is a warning: such files go to many hosts."""
    from gpuiso.gpu.inventory import build_inventory
    from gpuiso.grants.document import read_grants
    from gpuiso.grants.spec import matching
    from gpuiso.grants.units import units_of
    from gpuiso.host import open_host
    from gpuiso.policy.place import Remark

    try:
        grants = read_grants(text, file=file)
    except BadInput as error:
        return GrantsChecked((), None, (), (error,))
    units = None if syntax else units_of(build_inventory(open_host(record)))
    remarks = tuple(
        Remark(grant.place, f"this host has no GPU {item}")
        for grant in grants
        for item in grant.gpus or ()
        if units is not None and not matching(item, units)
    )
    return GrantsChecked(tuple(grants), units, remarks, ())
