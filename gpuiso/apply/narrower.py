# SPDX-License-Identifier: Apache-2.0
"""What something else denies although the policy allows it, as it is now.

Kept with a policy that was applied with ``--narrower``, so that what was accepted then is told from what came later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuiso.apply.target import Target
from gpuiso.apply.verify import Proof, Verification, compare
from gpuiso.policy.parse import parse_rules

__all__ = ["denied_elsewhere"]


def denied_elsewhere(policy: Mapping[str, Any], target: Target) -> dict[str, str]:
    """Sentences by access (``c 195:0 w``). ``policy`` is one that was remembered.

    :raises StepFailed: something would be allowed that the policy denies.
    """
    rules = policy.get("rules")
    if rules is None or target.v2 is None:
        return {}
    parsed = tuple(parse_rules("\n".join(rules)))
    proof = Proof()
    compare(Verification(target.v2, None, parsed, bool(policy.get("default_allow")), narrower=True), proof)
    return {str(access): said for access, said in proof.denied.items()}
