# SPDX-License-Identifier: Apache-2.0
"""System calls by their own names. No policy; only os, ctypes, struct, errno and mmap are imported."""

from __future__ import annotations
