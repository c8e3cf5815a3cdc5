# SPDX-License-Identifier: Apache-2.0
"""A spec as YAML or JSON text that every reader reads alike."""

from __future__ import annotations

import functools
import json
from typing import Any

from gpuiso.cdi.document import plain_meaning
from gpuiso.cdi.spec import Spec

__all__ = ["to_json", "to_yaml"]


def to_json(spec: Spec) -> str:
    return json.dumps(spec.to_document(), indent=2, ensure_ascii=False) + "\n"


def to_yaml(spec: Spec) -> str:
    """Block style, ``---`` first, as the reference writes. Text that some YAML reader takes for more is
    quoted.
    """
    import yaml

    text: str = yaml.dump(
        spec.to_document(),
        Dumper=_dumper(),
        explicit_start=True,
        sort_keys=False,
        allow_unicode=True,
        width=4096,
    )
    return text


@functools.cache
def _dumper() -> Any:
    import yaml

    base: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

    class Dumper(base):  # type: ignore[misc]
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def represent_text(dumper: Any, text: str) -> Any:
        # PyYAML quotes what PyYAML would misread; yaml.v2 also takes 1e3, 0o17 and y for something else.
        style = None if plain_meaning(text) == text else "'"
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    Dumper.add_representer(str, represent_text)
    return Dumper
