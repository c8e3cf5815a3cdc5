# SPDX-License-Identifier: Apache-2.0
"""The doctor's report as a page."""

from __future__ import annotations

from collections.abc import Iterator

from gpuiso.cli.render.host import host_line
from gpuiso.cli.render.html import Field, Heading, not_examined, page, table, tag, text
from gpuiso.cli.render.html_map import now
from gpuiso.cli.render.report import verdict
from gpuiso.doctor.engine import Report
from gpuiso.doctor.finding import Finding
from gpuiso.gpu.model import DeviceNode, Gpu, MigDevice

__all__ = ["report_page"]

_ORDER = {"error": 0, "warning": 1, "info": 2}


def report_page(report: Report) -> str:
    """The whole document: the verdict, a table of the findings, each finding, then the host's GPUs and nodes."""
    host = report.machine.host
    body = [
        f'<p class="verdict {_kind(report)}">{text(verdict(report))}</p>\n',
        f'<p class="facts">{text(host_line(report.machine))}</p>\n',
    ]
    if report.findings:
        body += [_overview(report), _articles(report)]
    body += [_gpus(report), _nodes(report)]
    body.append(
        not_examined((e.what if e.pid is None else f"{e.what} (pid {e.pid})", e.why) for e in report.not_examined)
    )
    return page(f"GPU report of {host.name}", "".join(body), made=now(host))


def _kind(report: Report) -> str:
    if report.bad:
        return report.findings[0].severity
    return "good" if report.machine.inventory.gpus else "info"


def _overview(report: Report) -> str:
    headings = [Heading("Finding", wide=True), Heading("Severity"), Heading("About"), Heading("Rule")]
    rows = (
        [
            Field(f'<a href="#finding-{place}">{text(finding.title)}</a>', finding.title),
            Field(tag(finding.severity, finding.severity), _ORDER[finding.severity]),
            Field(text(_about(finding)), _about(finding)),
            Field(f'<span class="mono">{text(finding.rule.id)}</span>', finding.rule.id),
        ]
        for place, finding in enumerate(report.findings, 1)
    )
    caption = "Every finding, most severe first; the cause, the evidence and the fix are below"
    return f"<section><h2>Findings</h2>\n{table(caption, headings, rows, region='findings')}</section>\n"


def _about(finding: Finding) -> str:
    return ", ".join(f"{name} {value}" for name, value in finding.target.as_json().items()) or "this host"


def _articles(report: Report) -> str:
    articles = "".join(_article(place, finding) for place, finding in enumerate(report.findings, 1))
    return f"<section><h2>Causes and fixes</h2>\n{articles}</section>\n"


def _article(place: int, finding: Finding) -> str:
    evidence = "".join(
        f"<li><code>{text(entry.source)}</code>: {text(entry.says)}</li>\n" for entry in finding.evidence
    )
    parts = [
        f'<article id="finding-{place}" aria-labelledby="title-{place}">\n'
        f'<h3 id="title-{place}">{tag(finding.severity, finding.severity)}{text(finding.title)}</h3>\n'
        f'<p class="faint">{text(_about(finding))} · <span class="mono">{text(finding.rule.id)}</span></p>\n'
        f"<p>{text(finding.cause)}</p>\n<h4>Evidence</h4><ul>\n{evidence}</ul>\n"
    ]
    if finding.fix:
        parts.append(f"<h4>Fix</h4>\n{''.join(_fixes(finding))}")
    if finding.rule.sources:
        links = "".join(f"<li>{_link(source)}</li>\n" for source in finding.rule.sources)
        parts.append(f"<h4>Documented at</h4><ul>\n{links}</ul>\n")
    return "".join([*parts, "</article>\n"])


def _fixes(finding: Finding) -> Iterator[str]:
    for fix in finding.fix:
        yield f"<p>{text(fix.text)}</p>\n"
        if fix.command is not None:
            yield f"<pre><code>{text(fix.command)}</code></pre>\n"


def _link(source: str) -> str:
    """Sources are the project's own, but only the web's addresses become links."""
    if not source.startswith("https://"):
        return text(source)
    return f'<a href="{text(source)}" rel="noreferrer">{text(source)}</a>'


def _gpus(report: Report) -> str:
    gpus = report.machine.inventory.gpus
    if not gpus:
        return ""
    names = ("GPU", "Model", "UUID", "PCI address", "Node", "Memory used")
    headings = [Heading(name, wide=name == "UUID") for name in names]
    rows = [row for gpu in gpus for row in (_gpu(gpu), *(_mig(gpu, mig) for mig in gpu.mig_devices))]
    return f"<section><h2>GPUs</h2>\n{table('In PCI order', headings, rows, region='gpus')}</section>\n"


def _gpu(gpu: Gpu) -> list[Field]:
    label = f"GPU {gpu.index}" if gpu.index is not None else f"GPU driven by {gpu.driver or 'no driver'}"
    used = ""
    if gpu.memory_total is not None and gpu.memory_used is not None:
        used = f"{gpu.memory_used >> 20} of {gpu.memory_total >> 20} MiB"
    return [
        Field(text(label), label),
        _plain(gpu.name or gpu.vendor),
        _mono(gpu.uuid),
        _mono(gpu.pci_address),
        _mono(None if gpu.node is None else gpu.node.path),
        Field(text(used or "not known"), -1 if gpu.memory_used is None else gpu.memory_used),
    ]


def _mig(gpu: Gpu, mig: MigDevice) -> list[Field]:
    label = f"GPU {gpu.index} MIG {mig.gpu_instance}/{mig.compute_instance}"
    nodes = ", ".join(node.path for node in mig.nodes)
    return [
        Field(text(label), label),
        _plain(mig.profile or "not known"),
        _mono(mig.uuid),
        _mono(gpu.pci_address),
        _mono(nodes or None),
        Field("not known", -1),
    ]


def _nodes(report: Report) -> str:
    inventory = report.machine.inventory
    nodes = [node for gpu in inventory.gpus for node in gpu.nodes]
    nodes += [node for gpu in inventory.gpus for mig in gpu.mig_devices for node in mig.nodes]
    nodes += inventory.shared_nodes
    if not nodes:
        return ""
    headings = [Heading(name) for name in ("Node", "State", "Numbers", "Mode and owner", "What for")]
    rows = [_node(node) for node in nodes]
    caption = "The nodes that the drivers ought to have on this host"
    return f"<section><h2>Device nodes</h2>\n{table(caption, headings, rows, region='nodes')}</section>\n"


def _node(node: DeviceNode) -> list[Field]:
    expected = "?" if node.major is None else f"{node.major}:{node.minor}"
    mode = "" if node.actual is None else f"{node.actual.mode:04o} {node.actual.uid}:{node.actual.gid}"
    if not node.known:
        state = ("unknown", "not known")
    elif node.actual is None:
        state = ("error", "missing") if node.required else ("closed", "absent, not required")
    elif node.right:
        state = ("good", "right")
    else:
        state = ("error", f"wrong: {node.actual.type} {node.actual.major}:{node.actual.minor}")
    return [
        Field(f'<span class="mono">{text(node.path)}</span>', node.path),
        Field(tag(*state), state[1]),
        _mono(expected),
        _mono(mode or None),
        _plain(node.role),
    ]


def _plain(value: str) -> Field:
    return Field(text(value), value)


def _mono(value: str | None) -> Field:
    if value is None:
        return Field('<span class="faint">not known</span>', "")
    return Field(f'<span class="mono">{text(value)}</span>', value)
