# SPDX-License-Identifier: Apache-2.0
"""Why an open of a device node succeeds or fails: every gate the kernel has, in the order it meets them."""

from __future__ import annotations

from gpuiso.doctor.gates.explain import explain, explain_cgroup
from gpuiso.doctor.gates.model import Explanation, Gate, Verdict

__all__ = ["Explanation", "Gate", "Verdict", "explain", "explain_cgroup"]
