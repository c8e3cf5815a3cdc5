# SPDX-License-Identifier: Apache-2.0
"""gpuiso: which process may use which GPU, and how much of it, on Linux."""

from __future__ import annotations

__version__ = "0.1.0"
