# SPDX-License-Identifier: Apache-2.0
"""gpu.max as time: a closed loop that measures a cgroup's GPU time and freezes it when it has had its share."""

from __future__ import annotations
