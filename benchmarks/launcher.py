# SPDX-License-Identifier: Apache-2.0
"""Run commands in turn and print what each run took: ``python -I -S launcher.py ROUNDS``.

Standard input has one command a line, its arguments separated by NUL. Each round runs every command once, so
that commands that are compared meet the same moments of a busy machine. Each run is one line of output:
``COMMAND-INDEX NANOSECONDS PEAK-KIB EXIT``.

A program of its own, and small: Linux counts the memory that a process had before execve(2) into the peak of
what it becomes, so the children of a large parent would all look large.
"""

from __future__ import annotations

import os
import sys
import time


def main() -> None:
    commands = [line.split("\0") for line in sys.stdin.read().splitlines()]
    sink = os.open(os.devnull, os.O_RDWR)
    for _ in range(int(sys.argv[1])):
        for index, argv in enumerate(commands):
            start = time.perf_counter_ns()
            pid = os.fork()
            if pid == 0:
                for fd in (0, 1, 2):
                    os.dup2(sink, fd)
                try:
                    os.execv(argv[0], argv)
                finally:
                    os._exit(127)
            _, status, usage = os.wait4(pid, 0)
            spent = time.perf_counter_ns() - start
            print(index, spent, usage.ru_maxrss, os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
