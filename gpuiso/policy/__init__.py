# SPDX-License-Identifier: Apache-2.0
"""What people ask for: device rules and limits, as data. Pure."""

from __future__ import annotations
