# SPDX-License-Identifier: Apache-2.0
"""Cgroup device programs, ours and strangers': read, run, explain and write them. Pure: no system calls."""

from __future__ import annotations
