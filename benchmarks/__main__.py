# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmarks``: measure, and print a table or, with ``--json``, one object."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys

from benchmarks.registry import NotMeasurable, Row, Topic, load

SCALE = {"s": (1000.0, "ms"), "MiB": (1.0, "MiB")}


def main() -> None:
    topics = load()
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure gpuiso on this machine.")
    parser.add_argument("topics", nargs="*", metavar="TOPIC", help=f"of {', '.join(topics)}; default: all")
    parser.add_argument("--rounds", type=int, default=15, help="runs of each command (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.topics) - topics.keys()):
        parser.error(f"no such topic: {', '.join(unknown)}")
    if arguments.rounds < 1:
        parser.error("--rounds is at least 1")
    chosen = [topics[name] for name in arguments.topics or topics]

    report: dict[str, object] = {}
    for topic in chosen:
        try:
            rows = topic.run(arguments.rounds)
        except NotMeasurable as why:
            report[topic.name] = {"not_measured": str(why)}
            if not arguments.json:
                print(f"{topic.name}: not measured: {why}\n")
            continue
        report[topic.name] = [as_json(row) for row in rows]
        if not arguments.json:
            print(table(topic, rows))
    if arguments.json:
        json.dump({"gpuiso": "bench/1", "machine": machine(), "topics": report}, sys.stdout, indent=2)
        print()


def machine() -> dict[str, object]:
    """What the numbers depend on."""
    return {
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
    }


def as_json(row: Row) -> dict[str, object]:
    return {
        "name": row.name,
        "unit": row.unit,
        "median": row.median,
        "min": min(row.samples),
        "max": max(row.samples),
        "n": len(row.samples),
        "peer": row.peer,
        "ratio": row.ratio,
        "bar": row.bar,
        "bar_on": ("ratio" if row.bar_on_ratio else "median") if row.bar is not None else None,
        "holds": row.holds,
        "note": row.note,
    }


def table(topic: Topic, rows: list[Row]) -> str:
    """The rows as aligned text, headed by what the topic is about."""
    cells = [("", "median", "min", "max", "ratio", "bar", "")]
    for row in rows:
        scale, unit = SCALE.get(row.unit, (1.0, row.unit))
        bar = ""
        if row.bar is not None:
            bar = f"{row.bar:g} x" if row.bar_on_ratio else f"{row.bar * scale:g} {unit}"
        verdict = {True: "holds", False: "OVER", None: ""}[row.holds]
        cells.append(
            (
                row.name,
                f"{row.median * scale:.1f} {unit}",
                f"{min(row.samples) * scale:.1f}",
                f"{max(row.samples) * scale:.1f}",
                "" if row.ratio is None else f"{row.ratio:.2f} x",
                bar,
                " ".join(part for part in (verdict, row.note) if part),
            )
        )
    widths = [max(len(line[column]) for line in cells) for column in range(7)]
    text = [f"{topic.name}: {topic.about}"]
    for name, *numbers, remark in cells:
        right = "  ".join(number.rjust(width) for number, width in zip(numbers, widths[1:6], strict=True))
        text.append(f"  {name.ljust(widths[0])}  {right}  {remark}".rstrip())
    peers = sorted({row.peer for row in rows if row.peer is not None})
    if peers:
        text.append(f"  ratio: of medians, to {', '.join(peers)} in the same run")
    return "\n".join(text) + "\n"


if __name__ == "__main__":
    main()
