# SPDX-License-Identifier: Apache-2.0
"""systemd: its bus, its unit files, and drop-ins for them."""

from __future__ import annotations
