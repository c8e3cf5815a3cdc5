# SPDX-License-Identifier: Apache-2.0
"""The grants of policy.d as the hook reads them (:mod:`gpuiso.hook.grants` describes the file)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuiso.errors import BadInput
from gpuiso.grants.document import Grant, load_grants
from gpuiso.grants.spec import matching
from gpuiso.grants.units import Unit
from gpuiso.host.protocol import Host

__all__ = ["compiled_grants"]


def compiled_grants(
    host: Host, policies: str, units: Sequence[Unit], names: Mapping[str, str]
) -> tuple[dict[str, Any] | None, BadInput | None]:
    """The content of the hook's file, None where grants limit no container; and what is wrong with the files.

    ``names`` leads from what the hook calls a GPU to the id of its table.
    """
    try:
        grants = load_grants(host, policies) or ()
    except BadInput as error:
        return _document((), error.message), error
    if not any(grant.containers for grant in grants):
        return None, None
    of_containers = [grant for grant in grants if grant.containers or grant.slices]
    return _document([_compiled(grant, units, names) for grant in of_containers], None), None


def _document(grants: Sequence[dict[str, Any]], error: str | None) -> dict[str, Any]:
    return {"gpuiso": "hook-grants/1", "error": error, "grants": list(grants)}


def _compiled(grant: Grant, units: Sequence[Unit], names: Mapping[str, str]) -> dict[str, Any]:
    given = units if grant.gpus is None else [unit for item in grant.gpus for unit in matching(item, units)]
    ids = dict.fromkeys(names[unit.pci_address if unit.whole else unit.id] for unit in given)
    limit = grant.gpu_max
    return {
        "place": str(grant.place),
        "slices": sorted(grant.slices),
        "containers": [list(pair) for pair in grant.containers],
        "gpus": list(ids),
        "most": grant.most,
        "gpu.max": None if limit is None or limit.quota is None else str(limit),
    }
