# SPDX-License-Identifier: Apache-2.0
"""Taking a GPU back from a running process, and giving it back."""

from __future__ import annotations
