# SPDX-License-Identifier: Apache-2.0
"""A workload for tests: multiplies matrices and prints ``MONOTONIC GPU-SECONDS MULTIPLICATIONS`` as it goes.

``python matmul.py SIZE [BUSY IDLE]``: back to back, or BUSY seconds of work and IDLE seconds of rest in turn. The GPU
time is the sum of the kernels' own times, taken from events around each multiplication.
"""

from __future__ import annotations

import sys
import time

import torch


def main() -> None:
    size = int(sys.argv[1])
    busy, idle = (float(word) for word in sys.argv[2:4]) if len(sys.argv) > 2 else (1e9, 0.0)
    left = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    right = torch.randn_like(left)
    for _ in range(5):
        left @ right
    torch.cuda.synchronize()
    spent, count, begun = 0.0, 0, time.monotonic()
    while True:
        events = []
        for _ in range(8):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            left @ right
            end.record()
            events.append((start, end))
        torch.cuda.synchronize()
        times = sorted(start.elapsed_time(end) / 1000 for start, end in events)
        # A freeze between two submissions stretches the time between their events: such a one counts as the median.
        usual = times[len(times) // 2]
        spent += sum(elapsed if elapsed < 2 * usual else usual for elapsed in times)
        count += len(events)
        print(time.monotonic(), spent, count, flush=True)
        if time.monotonic() - begun > busy:
            time.sleep(idle)
            begun = time.monotonic()


if __name__ == "__main__":
    main()
