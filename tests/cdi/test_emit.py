# SPDX-License-Identifier: Apache-2.0
"""What is written reads back as it was, in every reader."""

from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuiso.cdi.emit import to_json, to_yaml
from gpuiso.cdi.spec import ContainerEdits, Device, Spec
from gpuiso.cdi.validate import read_spec

# yaml.v2 and PyYAML disagree about these.
TRICKY = ["y", "1e3", "0o17", "1:30", "1_0", "0x1", ".5", "~", "", "null", "2001-12-14", "<<", "=", "- a", "a: b", "#"]


def spec_with(text: str) -> Spec:
    edits = ContainerEdits(env=(f"A={text}",))
    return Spec("0.6.0", "v.com/gpu", {text: text}, (Device("0", {"k": text}, edits),))


@pytest.mark.parametrize("text", TRICKY)
def test_text_stays_text(text: str) -> None:
    spec = spec_with(text)
    assert read_spec(to_yaml(spec).encode()) == (spec, [])
    assert yaml.safe_load(to_yaml(spec)) == spec.to_document()


@settings(max_examples=200)
@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=8))
def test_any_text_stays_text(text: str) -> None:
    spec = spec_with(text)
    assert read_spec(to_yaml(spec).encode()) == (spec, [])
    assert json.loads(to_json(spec)) == spec.to_document()


def test_yaml_begins_as_the_reference_begins() -> None:
    assert to_yaml(spec_with("x")).startswith("---\ncdiVersion: 0.6.0\nkind: v.com/gpu\n")
