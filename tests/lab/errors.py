# SPDX-License-Identifier: Apache-2.0
"""What can go wrong with a lab itself, as opposed to with what is tested in it."""

from __future__ import annotations

import shlex
import subprocess


class LabError(RuntimeError):
    """The lab cannot be built, booted or used; the message says why and what to do."""


class CommandFailed(LabError):
    """A command in the lab ended with a status other than 0; the message holds what it printed."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        text = (done.stdout[-2000:] + done.stderr[-2000:]).strip()
        super().__init__(f"{shlex.join(done.args)}: exit {done.returncode}\n{text}")
        self.done = done
