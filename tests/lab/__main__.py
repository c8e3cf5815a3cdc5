# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.lab``: a shell in a container host, and what goes with it."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.lab import cache
from tests.lab.errors import LabError
from tests.lab.host import ENVIRONMENT, Lab
from tests.lab.image import PACKAGES, PYTHON, image, say
from tests.lab.image import key as image_key
from tests.lab.node import gpu_nodes
from tests.lab.state import states, sweep
from tests.lab.vm import disk, interactive, run_job
from tests.lab.wheels import key as wheels_key
from tests.lab.wheels import site_directory

RELEASES = list(PACKAGES)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        status: int = options.verb(options)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description=__doc__)
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    shell = verbs.add_parser("shell", help="boot a lab; a shell in it, or COMMAND; it ends with the shell")
    shell.add_argument("--release", choices=RELEASES, default=RELEASES[0])
    shell.add_argument("--gpus", type=int, default=2, metavar="N", help="how many /dev/nvidiaN it has (2)")
    shell.add_argument("command", nargs="*", help="a command and its arguments, after --")
    shell.set_defaults(verb=_shell)

    vm = verbs.add_parser("vm", help="the same host as a virtual machine: a console, or a script in it")
    vm.add_argument("script", nargs="?", type=Path, help="what to run there; its output and status come back")
    vm.add_argument("--results", type=Path, metavar="DIR", help="where to write what SCRIPT leaves in $RESULTS")
    vm.add_argument("--timeout", type=float, default=900.0, metavar="SECONDS", help="for the machine (900)")
    vm.add_argument("--release", choices=RELEASES, default=RELEASES[0])
    vm.set_defaults(verb=_vm)

    build = verbs.add_parser("build", help="make what labs need ahead of time")
    build.add_argument("--release", choices=RELEASES, action="append", help="only these (all)")
    build.add_argument("--vm", action="store_true", help="and virtual machines")
    build.set_defaults(verb=_build)

    prune = verbs.add_parser("prune", help="remove what other versions of the checkout have cached")
    prune.set_defaults(verb=_prune)

    verbs.add_parser("sweep", help="end labs whose owner is gone").set_defaults(verb=_sweep)
    return parser


def _shell(options: argparse.Namespace) -> int:
    with Lab.boot(options.release, nodes=gpu_nodes(options.gpus)) as lab:
        argv = options.command or ["bash", "-l"]
        if not options.command:
            say(f"Debian {options.release}; the checkout is /opt/gpuiso; `exit` ends the lab")
        if not options.command and sys.stdin.isatty():
            # A terminal of the lab's own: ours has no name in there.
            argv = ["script", "--quiet", "--return", "--command", "bash -l", "/dev/null"]
        return subprocess.run(lab.command(argv), env=ENVIRONMENT, cwd="/", check=False).returncode


def _vm(options: argparse.Namespace) -> int:
    if options.script is None:
        return interactive(options.release)
    done = run_job(options.script.read_bytes(), release=options.release, timeout=options.timeout)
    print(done.output, end="")
    for name, data in done.files.items() if options.results else ():
        path = options.results / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    say(f"exit {done.status} after {done.seconds} s")
    return done.status


def _build(options: argparse.Namespace) -> int:
    for release in options.release or RELEASES:
        made = image(release)
        site_directory(made.python)
        if options.vm:
            disk(image(release, vm=True))
        say(f"{release}: {made.root} ({made.bytes // 1_000_000} MB, built in {made.seconds} s)")
    return 0


def _prune(options: argparse.Namespace) -> int:
    sweep()
    if running := states():
        raise LabError(f"labs are running and may use what would go: {', '.join(state.name for state in running)}")
    images = [image_key(release, vm=vm) for release in RELEASES for vm in (False, True)]
    for name in cache.prune([*images, *(wheels_key(python) for python in PYTHON.values())]):
        say(f"removed {name}")
    return 0


def _sweep(options: argparse.Namespace) -> int:
    for state in sweep():
        say(f"ended {state.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
