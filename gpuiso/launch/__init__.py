# SPDX-License-Identifier: Apache-2.0
"""Starting a workload on exactly the GPUs it was given: leases, rules, environment, and the start itself."""

from __future__ import annotations
