# SPDX-License-Identifier: Apache-2.0
"""Changes to a host, as plans of steps: planned, journalled, made in order, read back, undone on failure."""

from __future__ import annotations
