# SPDX-License-Identifier: Apache-2.0
"""Tokens of CUDA_VISIBLE_DEVICES that can be judged as text: they end or shorten the list on every host."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpuiso.doctor.checks.cuda_words import CUDA_GUIDE, assignment, gpu_name, inherited, restart, select_fix, unset_fix
from gpuiso.doctor.checks.launchers import hidden_by_ray
from gpuiso.doctor.finding import Finding, Fix, Rule, Severity
from gpuiso.doctor.machine import Subject
from gpuiso.doctor.registry import process_check
from gpuiso.gpu.visibility.cuda import VARIABLE, lex, parse
from gpuiso.gpu.visibility.model import Kind, Token
from gpuiso.gpu.visibility.tokens import hex_run, items, quoted

__all__ = ["BADTOKEN", "bare_uuid"]

EMPTY = Rule(
    "GPU-CVD-EMPTY",
    "error",
    "CUDA_VISIBLE_DEVICES is empty, which hides every GPU",
    "CUDA_VISIBLE_DEVICES is set to the empty string: CUDA finds no device",
    (CUDA_GUIDE, "https://github.com/radical-cybertools/radical.pilot/issues/2251"),
)
NEGATIVE = Rule(
    "GPU-CVD-NEGATIVE",
    "error",
    "A negative number ends CUDA_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES holds a negative number: nothing from there on is visible",
    (CUDA_GUIDE, "https://github.com/numba/numba/issues/5793"),
)
BADTOKEN = Rule(
    "GPU-CVD-BADTOKEN",
    "error",
    "CUDA_VISIBLE_DEVICES holds what CUDA cannot read",
    "CUDA_VISIBLE_DEVICES holds a word, a range, quotes or an unknown name: the list ends there or loses the rest",
    (CUDA_GUIDE, "https://github.com/pytorch/pytorch/pull/84879"),
)

_HIDES = frozenset({"nodevfiles", "none", "void"})  # what people and schedulers write to mean no GPU at all
_RANGE = re.compile(r"\s*(\d{1,4})\s*-\s*(\d{1,4})\s*")


def _tokens(subject: Subject) -> tuple[Token, ...]:
    """The tokens as text alone; none where the variable is unset or there is no GPU it could select."""
    value = subject.env.get(VARIABLE)
    if value is None or not subject.machine.nvidia:
        return ()
    return tuple(lex(position, text) for position, text in enumerate(items(value)))


def _hiding(subject: Subject) -> Severity:
    """A value that hides every GPU may be meant so; who asks about the process by name misses its GPUs."""
    return "error" if subject.asked else "info"


@process_check(EMPTY)
def empty(subject: Subject) -> Iterator[Finding]:
    """An empty value."""
    tokens = _tokens(subject)
    if len(tokens) != 1 or tokens[0].kind is not Kind.EMPTY or hidden_by_ray(subject) or inherited(subject):
        return
    yield EMPTY.finding(
        f"{VARIABLE} is set to the empty string in {subject.comm} (pid {subject.pid}). That is not the same as unset:"
        " it hides every GPU, and cuInit fails with 100 (no device).",
        evidence=[subject.environ_evidence(VARIABLE)],
        fix=[
            unset_fix(subject, "To give it every GPU that it may open, unset the variable"),
            select_fix(subject, subject.machine.nvidia[:1], "To give it one GPU, name that one"),
        ],
        target=subject.target,
        severity=_hiding(subject),
    )


@process_check(NEGATIVE)
def negative(subject: Subject) -> Iterator[Finding]:
    """A negative number; at the very end of a list it changes nothing."""
    tokens = _tokens(subject)
    found = next((token for token in tokens if token.number is not None and token.number < 0), None)
    if found is None or _ended_before(tokens, found) or inherited(subject):
        return
    lost = tokens[found.position + 1 :]
    if found.position and not lost:
        return
    if found.position:
        what = f"only what stands before it counts, and {_listed(lost)} is not visible"
        severity: Severity = "warning"
    else:
        what = "it stands first, so no GPU is visible and cuInit fails with 100 (no device)"
        severity = "error" if lost else _hiding(subject)
    rest = ",".join(token.text for token in tokens if token is not found)
    yield NEGATIVE.finding(
        f"Token {found.position + 1} of {VARIABLE} is {quoted(found.text)}, which ends the list: {what}.",
        evidence=[subject.environ_evidence(VARIABLE)],
        fix=[Fix(f"Leave the negative number out, {restart(subject)}", assignment(VARIABLE, rest))]
        if lost
        else [unset_fix(subject, "To give it every GPU that it may open, unset the variable")],
        target=subject.target,
        severity=severity,
    )


@process_check(BADTOKEN)
def unreadable(subject: Subject) -> Iterator[Finding]:
    """A plain word or an empty token, which ends the list."""
    tokens = _tokens(subject)
    found = next((token for token in tokens if token.kind in (Kind.WORD, Kind.EMPTY)), None)
    if found is None or _ended_before(tokens, found) or inherited(subject):
        return
    lost = tokens[found.position + 1 :]
    if found.kind is Kind.EMPTY and (len(tokens) == 1 or not lost):
        return  # an empty value has its own rule; behind a last comma nothing is lost
    hides = len(tokens) == 1 and found.text.strip().lower() in _HIDES
    before = tokens[: found.position]
    if before:
        what = f"only {_listed(before)} before it counts"
    else:
        what = "it stands first, so no GPU is visible and cuInit fails with 100 (no device)"
    why = parse(found.text, subject.machine.nvidia).tokens[0].why
    yield BADTOKEN.finding(
        f"Token {found.position + 1} of {VARIABLE} is {quoted(found.text)} and ends the list ({why}): {what}.",
        evidence=[subject.environ_evidence(VARIABLE)],
        fix=[_repair(subject, found)],
        target=subject.target,
        severity=_hiding(subject) if hides else "warning" if before else "error",
    )


@process_check(BADTOKEN)
def half_read(subject: Subject) -> Iterator[Finding]:
    """A token of which CUDA reads the beginning and drops the rest, above all a range."""
    tokens = _tokens(subject)
    found = next((token for token in tokens if token.rest.strip() and (token.number or 0) >= 0), None)
    if found is None or _ended_before(tokens, found) or inherited(subject):
        return
    if bare_uuid(found.text):
        yield _without_prefix(subject, found)
        return
    read = found.text[: -len(found.rest)].strip()
    span = _RANGE.fullmatch(found.text)
    gpus = subject.machine.nvidia
    fix = Fix(f"Write a comma-separated list of numbers or UUIDs in {VARIABLE}")
    what = f"CUDA reads {quoted(read)} and drops {quoted(found.rest)}"
    if span is not None:
        what += "; it knows no ranges"
        first, last = int(span[1]), int(span[2])
        if first <= last < len(gpus):
            fix = select_fix(subject, gpus[first : last + 1], f"Name each of the GPUs {first} to {last}")
    elif len(found.rest.strip()) > 1 and found.rest.strip()[0] in ";:| ":
        what += "; only the comma separates"
    yield BADTOKEN.finding(
        f"Token {found.position + 1} of {VARIABLE} is {quoted(found.text)}: {what}.",
        evidence=[subject.environ_evidence(VARIABLE)],
        fix=[fix],
        target=subject.target,
        severity="warning",
        title="CUDA reads only the beginning of a token of CUDA_VISIBLE_DEVICES",
    )


def bare_uuid(text: str) -> bool:
    """Whether a token is a whole UUID that lacks GPU- before it; it may begin with digits, which CUDA then reads."""
    return len(hex_run(text.strip())) == 36


def _without_prefix(subject: Subject, token: Token) -> Finding:
    uuid = f"GPU-{token.text.strip()}".lower()
    named = [gpu for gpu in subject.machine.nvidia if (gpu.uuid or "").lower() == uuid]
    return BADTOKEN.finding(
        f"{quoted(token.text)} in {VARIABLE} is a UUID without GPU- before it: CUDA reads the number {token.number}.",
        evidence=[subject.environ_evidence(VARIABLE)],
        fix=[select_fix(subject, named, "Write the UUID with GPU- before it")],
        target=subject.target,
        title="CUDA reads a UUID in CUDA_VISIBLE_DEVICES as a number",
    )


def _ended_before(tokens: tuple[Token, ...], found: Token) -> bool:
    """Whether another unreadable token has ended the list already: that one is the finding."""
    return any(
        token.kind in (Kind.WORD, Kind.EMPTY) or (token.number is not None and token.number < 0)
        for token in tokens[: found.position]
    )


def _listed(tokens: tuple[Token, ...]) -> str:
    return ", ".join(quoted(token.text) for token in tokens)


def _repair(subject: Subject, token: Token) -> Fix:
    """The nearest thing that CUDA would read."""
    word = token.text.strip().strip("'\"[]() ")
    gpus = subject.machine.nvidia
    if word.lower() == "all":
        return unset_fix(subject, "To give it every GPU that it may open, unset the variable")
    if word.isdecimal() and len(word) <= 4 and int(word) < len(gpus):
        gpu = gpus[int(word)]
        return select_fix(subject, [gpu], f"Without the extra characters it would be {gpu_name(gpu)}: name that one")
    named = [gpu for gpu in gpus if gpu.uuid and len(word) >= 8 and word.lower().removeprefix("gpu-") in gpu.uuid]
    if len(named) == 1:
        return select_fix(subject, named, f"It looks like {gpu_name(named[0])}: write its UUID as it is")
    if token.kind is Kind.EMPTY:
        value = ",".join(t.text for t in _tokens(subject) if t.kind is not Kind.EMPTY)
        return Fix(f"Leave the empty token out, {restart(subject)}", assignment(VARIABLE, value))
    return select_fix(subject, gpus[:1], "Write numbers or UUIDs of GPUs, separated by commas (GPU 0 as an example)")
