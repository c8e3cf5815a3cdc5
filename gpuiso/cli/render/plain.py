# SPDX-License-Identifier: Apache-2.0
"""Text from environments, process names and files, made safe for a terminal.

Whoever wrote it may have put escape sequences into it that move the cursor, set the title or turn the reading
direction; they are shown instead of sent.
"""

from __future__ import annotations

import re

__all__ = ["one_line", "plain"]

# C0 and C1 controls but for newline and tab, and the characters that turn the direction of the text around them.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def plain(text: str) -> str:
    """``text`` with every such character written as Python writes it (``\\x1b``)."""
    return _UNSAFE.sub(lambda match: ascii(match[0])[1:-1], text)


def one_line(text: str) -> str:
    """:func:`plain` of what can only be a name: a newline or tab in it would feign a line of ours."""
    return plain(text).replace("\n", "\\n").replace("\t", "\\t")
