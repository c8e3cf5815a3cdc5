# SPDX-License-Identifier: Apache-2.0
"""Reading JSON that is written out again for a runtime.

Python reads more than RFC 8259 has, and drops what is given twice. What it would change on the way is refused.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from gpuiso.errors import BadInput

__all__ = ["read_json"]


def read_json(text: str, file: str, what: str) -> Any:
    """The value in ``text``. ``what`` it is not, as ``not an OCI config``, begins the messages of limits.

    :raises BadInput: it is no JSON, a key is given twice in one object, or a number or the nesting is beyond Python's.
    """

    def constant(word: str) -> NoReturn:
        raise BadInput(f"not JSON: {word} is no value of JSON", file=file)

    def number(digits: str) -> float:
        value = float(digits)
        if math.isinf(value):
            raise BadInput(f"{what}: {digits[:40]} is beyond the range of numbers", file=file)
        return value

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for name, value in pairs:
            if name in made:
                raise BadInput(f"{what}: {name!r} is given twice in one object", file=file)
            made[name] = value
        return made

    try:
        return json.loads(text, parse_constant=constant, parse_float=number, object_pairs_hook=members)
    except json.JSONDecodeError as error:
        raise BadInput(f"not JSON: {error.msg}", file=file, line=error.lineno, column=error.colno) from None
    except RecursionError:
        raise BadInput(f"{what}: nested too deep", file=file) from None
    except ValueError:  # what Python's own int() refuses
        raise BadInput(f"{what}: a number has thousands of digits", file=file) from None
