# SPDX-License-Identifier: Apache-2.0
"""What ``--json`` prints: one object, its kind and version under the key ``gpuiso``.

The JSON Schemas are in gpuiso/cli/schema, one file a kind.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

__all__ = ["print_file", "print_object"]


def print_object(found: Mapping[str, Any]) -> None:
    """Indented on a terminal, one line in a pipe."""
    print(json.dumps(found, indent=2 if sys.stdout.isatty() else None))


def print_file(text: str) -> None:
    """The content of a file, which is UTF-8 whatever the terminal's encoding; half a surrogate pair as JSON has it."""
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode(errors="backslashreplace"))
