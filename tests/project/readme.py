# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.project.readme``: run the commands that README.md shows, and write what they print into it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys

from tests.support import REPOSITORY

README = REPOSITORY / "README.md"
# A command in a code block, and what it printed: everything up to the end of the block.
SESSION = re.compile(r"^\$ \.venv/bin/gpuiso (.+)\n((?:(?!^```).*\n)*)", re.MULTILINE)


def refreshed(page: str) -> str:
    """The page with what its commands print now."""
    return SESSION.sub(lambda session: f"$ .venv/bin/gpuiso {session[1]}\n{output(session[1])}", page)


def output(command: str) -> str:
    """What ``gpuiso COMMAND`` prints into a pipe 110 columns wide, without trailing blanks."""
    argv = [sys.executable, "-m", "gpuiso", *shlex.split(command)]
    environ = {**os.environ, "COLUMNS": "110"}
    done = subprocess.run(argv, cwd=REPOSITORY, env=environ, capture_output=True, text=True, check=False)
    if done.returncode > 1 or not done.stdout:
        raise RuntimeError(f"gpuiso {command}: exit {done.returncode}: {done.stderr.strip()}")
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())


if __name__ == "__main__":
    README.write_text(refreshed(README.read_text()))
