# SPDX-License-Identifier: Apache-2.0
"""What the hook stands on: its program on the host, its definitions for engines, and the tables that it reads."""

from __future__ import annotations
