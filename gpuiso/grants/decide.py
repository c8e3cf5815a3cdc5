# SPDX-License-Identifier: Apache-2.0
"""What the grants come to.

A grant is for whom it names, or who is in a slice that it names; ``*`` is everybody but root. A request is fine if one
grant alone allows all of it. Where there are no grants, nothing is limited; where there are, nobody but root has
anything that no grant gives.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gpuiso.errors import NotPermitted
from gpuiso.grants.bearer import Bearer
from gpuiso.grants.document import DIRECTORY, Grant
from gpuiso.grants.spec import Request, matching
from gpuiso.grants.units import Unit
from gpuiso.policy.limits import GpuMax

__all__ = ["Terms", "applying", "permitted"]


@dataclass(frozen=True)
class Terms:
    """What a request may have: the request for the units that may be had, and limits."""

    request: Request
    most: int | None
    gpu_max: GpuMax | None

    def lacking(self, held: int) -> int:
        """How many units somebody who has ``held`` must give back before he may have these as well."""
        return 0 if self.most is None else max(0, held + len(self.request.slots) - self.most)

    def fits(self, taken: Collection[str]) -> bool:
        """Whether what is asked for can be had without ``taken``."""
        return self.request.assign(self.request.wanted.difference(taken)) is not None


def applying(grants: Sequence[Grant] | None, bearer: Bearer) -> tuple[Grant, ...] | None:
    """The grants for somebody; None if nothing limits him.

    Containers are limited as soon as one grant is for containers, and users unless all are.
    """
    if grants is None:
        return None
    if bearer.annotations is None:
        limited = not grants or any(grant.users or grant.groups or grant.slices for grant in grants)
    else:
        limited = any(grant.containers for grant in grants)
    found = tuple(grant for grant in grants if grant.is_for(bearer))
    if not limited or (bearer.uid == 0 and bearer.annotations is None and not found):
        return None
    return found


def permitted(
    grants: Sequence[Grant] | None,
    bearer: Bearer,
    request: Request,
    units: Sequence[Unit],
    *,
    share: bool,
    gpu_max: GpuMax | None,
    held: int = 0,
    taken: Collection[str] = (),
) -> Terms:
    """The terms of the first grant that allows a request; without a ``gpu_max`` of its own it gets the grant's.

    ``held`` is how many units the bearer has already, ``taken`` are those that nobody else can have now: a grant that
    can be used at once comes before one that cannot, which allows it still, for somebody who can wait.

    :raises NotPermitted: none does, says why.
    """
    found = applying(grants, bearer)
    if found is None:
        return Terms(request, None, gpu_max)
    reasons, allowed = [], []
    for grant in found:
        terms = _under(grant, request, units, share=share, gpu_max=gpu_max)
        if isinstance(terms, Terms):
            allowed.append(terms)
        else:
            reasons.append(f"{grant.place}: {terms}")
    if allowed:
        # Of equals the first, as they stand in the files.
        return max(allowed, key=lambda terms: (terms.lacking(held) == 0, terms.fits(taken), -terms.lacking(held)))
    why = "; ".join(reasons) or f"no grant in {DIRECTORY} is for this user"
    hint = f"an administrator can add a grant in {DIRECTORY}"
    raise NotPermitted(f"{bearer.name} may not have --gpus {request.text}: {why}", hint=hint)


def _under(
    grant: Grant, request: Request, units: Sequence[Unit], *, share: bool, gpu_max: GpuMax | None
) -> Terms | str:
    """The terms under one grant, or why it does not allow the request."""
    if share and grant.share is False:
        return "not with --share"
    if grant.most is not None and len(request.slots) > grant.most:
        return f"at most {grant.most} GPU{'' if grant.most == 1 else 's'}"
    limit = gpu_max
    if grant.gpu_max is not None and grant.gpu_max.quota is not None:
        limit = gpu_max or grant.gpu_max
        if limit.share > grant.gpu_max.share:
            return f"gpu.max at most {grant.gpu_max}"
    if grant.gpus is not None:
        allowed = {unit.id for item in grant.gpus for unit in matching(item, units)}
        request = request.within(allowed)
        if request.assign(request.wanted) is None:
            return f"only the GPUs {', '.join(grant.gpus)}"
    return Terms(request, grant.most, limit)
