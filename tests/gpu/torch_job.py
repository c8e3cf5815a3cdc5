# SPDX-License-Identifier: Apache-2.0
"""A PyTorch training loop with a given amount of data on the GPU: ``python torch_job.py GIB``.

It prints ``ready`` once the data are there, then trains without pause. Lines on standard input are answered between two
steps: ``sum`` with a checksum of the data, ``step`` with the number of steps done and the last loss.
"""

from __future__ import annotations

import select
import sys

import torch


def checksum(data: torch.Tensor) -> int:
    """Sums of pieces, each weighted by its place; they wrap as 64-bit integers do."""
    total = torch.zeros((), dtype=torch.int64, device=data.device)
    for place, piece in enumerate(data.split(1 << 26)):
        total = total * 1000003 + piece.sum(dtype=torch.int64) + place
    return int(total)


def main() -> None:
    count = int(float(sys.argv[1]) * (1 << 28))
    torch.manual_seed(20260731)
    data = torch.empty(count, dtype=torch.int32, device="cuda")
    for piece in data.split(1 << 26):
        piece.random_(-(1 << 31), (1 << 31) - 1)
    model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    target = torch.randn(512, 1, device="cuda")
    features = torch.randn(512, 1024, device="cuda")
    steps, loss = 0, torch.zeros(())
    print("ready", flush=True)
    while True:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(features), target)
        loss.backward()
        optimizer.step()
        steps += 1
        if select.select([sys.stdin], [], [], 0)[0]:
            line = sys.stdin.readline()
            if not line:
                return
            print(checksum(data) if line == "sum\n" else f"{steps} {loss.item():.6f}", flush=True)


if __name__ == "__main__":
    main()
