# SPDX-License-Identifier: Apache-2.0
"""``gpuiso-hook STAGE``: the entry point. One reason on standard error and in the journal, or nothing at all."""

from __future__ import annotations

import os
import sys

from gpuiso.hook.arguments import STAGES
from gpuiso.hook.errors import HookError, reason
from gpuiso.hook.state import State, read_state
from gpuiso.hook.undo import Undo

__all__ = ["main", "run"]

USAGE = f"usage: gpuiso-hook {'|'.join(STAGES)} [OPTION...], with the container's state on standard input"


def main() -> None:
    """Runs one stage and ends the process: 0, or 1 and the container does not start."""
    sys.stdout.flush()
    # Not through the interpreter's own end: nothing is left to be torn down that the kernel does not take back.
    os._exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Runs one stage; returns the exit status."""
    undo = Undo()
    container = ""
    try:
        stage = _stage(arguments)
        _refuse_loader_variables()
        state = read_state()
        container = state.id
        _run_stage(stage, arguments[1:], state, undo)
        undo.finish()
    except Exception as error:  # noqa: BLE001 - whatever went wrong: go back, say so, and let nothing start
        left = undo.take_back()
        if arguments[:1] == ["createContainer"] and container:
            left += _give_up(container)
        text = reason(error)
        if left:
            text += f"; and could not be undone: {'; '.join(left)}"
        _complain(arguments[0] if arguments else "", container, text)
        return 1
    return 0


def _stage(arguments: list[str]) -> str:
    if not arguments or arguments[0] not in STAGES:
        raise HookError(USAGE)
    return arguments[0]


def _run_stage(stage: str, arguments: list[str], state: State, undo: Undo) -> None:
    # Each stage has modules of its own; those of the others need not be read.
    if stage == "createContainer":
        from gpuiso.hook.arguments import container_work
        from gpuiso.hook.container import prepare_container

        prepare_container(state, container_work(arguments), undo)
    elif stage == "poststop":
        from gpuiso.hook.arguments import no_work
        from gpuiso.hook.governed import forget

        no_work(arguments)
        forget(state.id)
    else:
        from gpuiso.hook.arguments import runtime_work
        from gpuiso.hook.runtime import apply_policy

        apply_policy(state, runtime_work(arguments), undo)


def _give_up(container: str) -> list[str]:
    """The container does not start, and not every runtime calls poststop then."""
    from gpuiso.hook.governed import forget

    try:
        forget(container)
    except (HookError, OSError) as error:
        return [reason(error)]
    return []


def _refuse_loader_variables() -> None:
    """A hook whose definition gives no environment gets the container's (CVE-2025-23266), which steers the loader."""
    found = sorted(name for name in os.environ if name.startswith("LD_") or name == "GLIBC_TUNABLES")
    if found:
        raise HookError(f"started with {', '.join(found)} set: the hook's definition must give its own env")


def _complain(stage: str, container: str, text: str) -> None:
    from gpuiso.hook.journal import printable, to_journal

    where = f" {container}" if container else ""
    line = printable(f"{stage}{where}: {text}" if stage in STAGES else text)
    try:
        os.write(2, f"gpuiso-hook: {line}\n".encode())
    except OSError:
        pass  # a runtime that closed standard error still gets the exit status
    to_journal(line, container)


if __name__ == "__main__":
    main()
