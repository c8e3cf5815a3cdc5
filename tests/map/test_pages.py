# SPDX-License-Identifier: Apache-2.0
"""The pages' markup: complete in itself, well formed, and fit for a screen reader."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import pytest

from gpuiso.cli.render.html_map import map_page
from gpuiso.cli.render.html_report import report_page
from gpuiso.doctor.engine import examine
from gpuiso.doctor.map import build_map
from tests.map.hosts import MapMaker

VOID = {"meta", "br", "img", "link", "input", "hr"}


class Page(HTMLParser):
    """Elements in order, each with its attributes and the elements around it; fails on tags that do not match."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, list[str]] = {}
        self.feed(content)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.text.setdefault(self.open[-1], []).append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(params=["map", "doctor"])
def content(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    maker = MapMaker(tmp_path / "host")
    maker.container(10, "</script><b>", {"CUDA_VISIBLE_DEVICES": "' onload='x"}, gpus=[0, 1], holds=("/dev/nvidia0",))
    maker.container(11, "lost", {"NVIDIA_VISIBLE_DEVICES": "1"}, gpus=[1], allowed=[])
    maker.add_node("/dev/nvidia-uvm", 510, 0)
    maker.nvml({10: 100}, {77: 5})
    host = maker.host()
    return map_page(build_map(host)) if request.param == "map" else report_page(examine(host))


def test_complete_in_itself(content: str) -> None:
    page = Page(content)
    for tag, attributes in page.elements:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "form")
        assert not {"src", "srcset", "style", "action"} & attributes.keys(), tag
        assert not [name for name in attributes if name.startswith("on")], tag
        href = attributes.get("href")
        assert href is None or href.startswith(("https://", "#"))
    assert "url(" not in content
    assert "@import" not in content


def test_nothing_runs_but_the_one_script(content: str) -> None:
    page = Page(content)
    policy = next(m["content"] for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    for tag in ("script", "style"):
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", content, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none';")


def test_tables_tell_a_screen_reader_what_is_what(content: str) -> None:
    page = Page(content)
    tables = page.all("table")
    assert tables
    assert len(page.all("caption")) == len(tables)
    headings = page.all("th")
    assert {heading.get("scope") for heading in headings} == {"col", "row"}
    assert all(h.get("aria-sort") == "none" for h in headings if h["scope"] == "col")
    assert len([h for h in headings if h["scope"] == "row"]) == len(page.all("tr")) - len(tables)
    assert all(cell.get("data-label") for cell in page.all("td"))
    assert page.all("html") == [{"lang": "en"}]
    identifiers = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))
    named = [a["aria-labelledby"] for _, a in page.elements if "aria-labelledby" in a]
    assert set(named) <= set(identifiers)


def test_states_are_words_besides_colours(tmp_path: Path) -> None:
    maker = MapMaker(tmp_path / "host")
    maker.container(10, "a", {"NVIDIA_VISIBLE_DEVICES": "1"}, gpus=[0, 1], allowed=[0])
    words = Page(map_page(build_map(maker.host()))).text["span"]
    assert "! leak" in words
    assert "✗ lost" in words


def test_an_empty_map(tmp_path: Path) -> None:
    maker = MapMaker(tmp_path)
    blind = Page(map_page(build_map(maker.host())))
    assert any("no process can be looked at" in text for text in blind.text["p"])
    maker.process(10)
    page = Page(map_page(build_map(maker.host())))
    assert page.all("table") == []
    assert "No workload holds or selects a GPU." in page.text["p"]


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb (WCAG 2.2, "relative luminance")."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_stands_out_from_its_ground(theme: int) -> None:
    """WCAG 2.2, success criterion 1.4.3: at least 4.5 to 1."""
    style = (files("gpuiso.cli.render") / "page.css").read_text()
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", style.split(":root {")[1 + theme]))
    pairs = [(name, f"{name}-ground") for name in ("red", "amber", "green", "blue", "plum")]
    pairs += [(name, ground) for name in ("text", "faint", "link") for ground in ("ground", "panel")]
    for text, ground in pairs:
        darker, lighter = sorted(luminance(colours[name]) for name in (text, ground))
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5, (text, ground)
