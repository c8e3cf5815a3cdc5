# SPDX-License-Identifier: Apache-2.0
"""The pages in a real browser: they sort, nothing overflows, on a phone neither, and no stranger's script runs."""

from __future__ import annotations

import html
import json
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from gpuiso.cli.render.html_map import map_page
from gpuiso.cli.render.html_report import report_page
from gpuiso.doctor.engine import examine
from gpuiso.doctor.map import build_map
from tests.map.hosts import MapMaker
from tests.tiers import browser, requires

pytestmark = requires("browser")

HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"

# Looks at a page in a frame of its own (a window has a least width, a frame has none) and writes down what it found.
FRAME = """<!DOCTYPE html><title>frame</title><iframe width="{width}" height="800" srcdoc="{page}"></iframe>
<script type="application/json" id="found"></script>
<script>
const frame = document.querySelector("iframe");
frame.addEventListener("load", () => {{
  const page = frame.contentDocument, root = page.documentElement;
  const outside = [...page.querySelectorAll("body *")].filter((element) =>
    !element.closest(".scroll, .unseen") && element.getBoundingClientRect().right > root.clientWidth + 1);
  const table = page.querySelector("table");
  const rows = () => [...table.tBodies[0].rows].map((row) => row.children[0].dataset.sort);
  const heading = table.tHead.rows[0].children[{column}];
  const orders = [rows()], states = [heading.getAttribute("aria-sort")];
  for (let press = 0; press < 2; press++) {{
    heading.querySelector("button").click();
    orders.push(rows());
    states.push(heading.getAttribute("aria-sort"));
  }}
  document.getElementById("found").textContent = JSON.stringify({{
    title: page.title, width: root.clientWidth, scroll: root.scrollWidth, orders, states,
    outside: outside.map((element) => element.tagName + " " + element.className),
    said: page.getElementById("said").textContent,
    small: [...page.querySelectorAll("th button")].filter((b) => b.getBoundingClientRect().height < 24).length,
  }}).replaceAll("<", "\\\\u003c");
}});
</script>"""


class _Script(HTMLParser):
    """The text of the element with the id ``found``."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.inside = False
        self.found = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside = ("id", "found") in attrs

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.found += data

    def handle_endtag(self, tag: str) -> None:
        self.inside = False


def dump(address: str, profile: Path) -> str:
    """The document at ``address`` as it is after its scripts have run."""
    argv = [
        browser() or "",
        *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
        *("--disable-background-networking", "--disable-component-update", f"--user-data-dir={profile}"),
        *("--virtual-time-budget=3000", "--dump-dom", address),
    ]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True).stdout


def look(page: str, tmp_path: Path, *, width: int, column: int) -> dict[str, Any]:
    """What a browser finds in a page of ``width`` pixels when the heading of ``column`` is pressed twice."""
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.format(width=width, column=column, page=html.escape(page)))
    found: dict[str, Any] = json.loads(_Script(dump(frame.as_uri(), tmp_path / "profile")).found)
    return found


@pytest.fixture
def maker(tmp_path: Path) -> MapMaker:
    made = MapMaker(tmp_path / "host", gpus=8)
    made.container(10, "trainer", {"NVIDIA_VISIBLE_DEVICES": "0"}, gpus=[0], holds=("/dev/nvidia0",))
    made.container(11, "everything", {"NVIDIA_VISIBLE_DEVICES": "1"}, gpus=range(8))
    made.container(12, HOSTILE, {"CUDA_VISIBLE_DEVICES": HOSTILE * 3}, gpus=[1], allowed=[])
    made.process(13, {"CUDA_VISIBLE_DEVICES": made.uuids[5]}, cgroup="/system.slice/" + "long-name-" * 20 + ".service")
    made.process(14, cgroup="/", holds=("/dev/nvidia0",))
    made.nvml({10: 1000, 14: 2000}, *({} for _ in range(7)))
    return made


@pytest.mark.parametrize("width", [390, 1280])
def test_the_map(maker: MapMaker, tmp_path: Path, width: int) -> None:
    found = look(map_page(build_map(maker.host())), tmp_path, width=width, column=1)
    assert found["scroll"] <= found["width"]
    assert found["outside"] == []
    assert found["small"] == 0
    assert found["title"].startswith("GPU map of ")
    assert found["states"] == ["none", "ascending", "descending"]
    before, ascending, descending = found["orders"]
    assert sorted(before) == sorted(ascending)
    assert "everything" in ascending[:2], "leaks come first"
    assert ascending[2:4] == ["train (14)", "trainer"], "then who holds most"
    assert descending == ascending[::-1]
    assert found["said"] == "Sorted by GPU 0, descending"


@pytest.mark.parametrize("width", [390, 1280])
def test_the_report(maker: MapMaker, tmp_path: Path, width: int) -> None:
    maker.add_node("/dev/nvidia-uvm", 510, 0)
    page = report_page(examine(maker.host()))
    found = look(page, tmp_path, width=width, column=1)
    assert found["scroll"] <= found["width"]
    assert found["outside"] == []
    assert found["title"].startswith("GPU report of ")
    assert len(found["orders"][0]) > 1


def test_an_address_can_ask_for_an_order(maker: MapMaker, tmp_path: Path) -> None:
    page = tmp_path / "map.html"
    page.write_text(map_page(build_map(maker.host())))
    shown = dump(f"{page.as_uri()}#sort=-2", tmp_path / "profile")
    (heading,) = re.findall(r'aria-sort="descending"><button type="button">([^<]*)', shown)
    assert heading == "GPU 0"
    assert shown.index("trainer") < shown.index("everything")
