# SPDX-License-Identifier: Apache-2.0
"""How this program was called, for commands that are there to be copied."""

from __future__ import annotations

import os
import shlex
import shutil
import sys

__all__ = ["own_name"]


def own_name() -> str:
    """``gpuiso`` where the shell finds this one under that name, else as it was called (``.venv/bin/gpuiso``)."""
    called = sys.argv[0]
    name = os.path.basename(called)
    if name == "__main__.py":
        return f"{shlex.quote(os.path.basename(sys.executable))} -m gpuiso"
    if name != "gpuiso":
        return "gpuiso"  # somebody's own program calls main()
    found = shutil.which(name)
    if found is not None and os.path.realpath(found) == os.path.realpath(called):
        return name
    try:
        here = os.getcwd()
    except FileNotFoundError:
        return shlex.quote(called)  # the current directory was removed
    return shlex.quote(os.path.relpath(called, here) if called.startswith(f"{here}/") else called)
