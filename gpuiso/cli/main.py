# SPDX-License-Identifier: Apache-2.0
"""The entry point: registers the verbs and turns errors into one sentence and an exit code."""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Sequence
from typing import Any

from gpuiso import __version__
from gpuiso.apply.waiting import tell_waits
from gpuiso.cli.render.objects import print_object
from gpuiso.cli.render.plain import one_line, plain
from gpuiso.cli.stopping import Stopped, stopping_signals
from gpuiso.cli.streams import OutputFailed, ReaderGone, standard_streams
from gpuiso.errors import FailedAndUndone, GpuisoError, NotPermitted, UsageError

__all__ = ["main"]

_HELP = """See, prove, set and take back which process may use which GPU.

\b
Start here:
  gpuiso doctor                            why are GPUs missing, denied or visible by mistake?
  gpuiso doctor --pid 4711                 the same for one process
  gpuiso explain --pid 4711 /dev/nvidia0   which gate denies a node, and by which rule
  gpuiso map                               which workload may open, selects and fills which GPU
  gpuiso visible --pid 4711                which GPUs does this process see, and why
  gpuiso run --gpus 2 -- CMD               start a program on exactly the GPUs it was given
  gpuiso doctor --record host.tar.gz       keep what was read, to look at it elsewhere

\b
Exit codes: 0 fine, nothing found; 1 findings, or the answer is "denied"; 2 wrong usage or bad input file;
3 not permitted; 4 not found; 5 not supported or not known here; 6 timed out; 7 failed and undone;
8 failed and could not be undone; 74 done, but standard output cannot be written. 129, 130, 143: a signal ended
it; 141: nobody reads the output any more.
"""


_OUTPUT_FAILED = 74  # EX_IOERR of sysexits.h: what was asked for was done, only nobody could be told
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_OF_THE_HOST = (*_FORBIDDEN, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EISDIR, errno.ENOTDIR, errno.ELOOP)


def _run(arguments: Sequence[str]) -> int:
    import typer
    from typer.core import TyperGroup

    from gpuiso.cli.cdi import app as cdi
    from gpuiso.cli.config import config
    from gpuiso.cli.doctor import doctor
    from gpuiso.cli.explain import explain
    from gpuiso.cli.govern import govern
    from gpuiso.cli.hook import app as hook
    from gpuiso.cli.leases import leases
    from gpuiso.cli.ledger import app as ledger
    from gpuiso.cli.map import show_map
    from gpuiso.cli.reclaim import reclaim
    from gpuiso.cli.recover import recover
    from gpuiso.cli.repair import repair
    from gpuiso.cli.restore import restore
    from gpuiso.cli.rules import app as rules
    from gpuiso.cli.run import run
    from gpuiso.cli.visible import visible

    class Group(TyperGroup):
        def invoke(self, ctx: Any) -> Any:
            try:
                return super().invoke(ctx)
            except BrokenPipeError as error:
                raise ReaderGone from error  # Typer would make it exit code 1, which here means "findings"

    app = typer.Typer(
        name="gpuiso",
        cls=Group,
        help=_HELP,
        no_args_is_help=True,
        rich_markup_mode=None,  # plain help: it is read in pipes and logs too, and starts twice as fast
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def root(
        version: bool = typer.Option(False, "--version", help="Print the version and exit."),
    ) -> None:
        pass

    app.command("config")(config)
    app.command("doctor")(doctor)
    app.command("explain")(explain)
    app.command("govern")(govern)
    app.command("leases")(leases)
    app.command("map")(show_map)
    app.command("reclaim")(reclaim)
    app.command("recover")(recover)
    app.command("repair")(repair)
    app.command("restore")(restore)
    # Options behind the program's name are the program's.
    app.command("run", context_settings={"allow_interspersed_args": False})(run)
    app.command("visible")(visible)
    app.add_typer(cdi, name="cdi")
    app.add_typer(hook, name="hook")
    app.add_typer(ledger, name="ledger")
    app.add_typer(rules, name="rules")
    try:
        result = app(args=list(arguments), prog_name="gpuiso", standalone_mode=False)
    except typer.exceptions.TyperException as error:
        context = getattr(error, "ctx", None)
        if type(error).__name__ == "NoArgsIsHelpError" and context is not None:
            print(context.get_help())
            return UsageError.exit_code
        raise UsageError(_sentence(error), hint=_usage_hint(error)) from error
    return result if isinstance(result, int) else 0


def _sentence(error: Exception) -> str:
    text = error.format_message() if hasattr(error, "format_message") else str(error)
    return re.sub(r"is not a valid (int|integer|float)( range)?\b", "is not a number", str(text)).rstrip(".")


def _usage_hint(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "gpuiso"
    return f"{path} --help shows what there is"


def _own(arguments: Sequence[str]) -> list[str]:
    """The arguments before ``--``: what is behind it belongs to a program that is run."""
    words = list(arguments)
    return words[: words.index("--")] if "--" in words else words


def _shown(text: str, names: Sequence[str]) -> str:
    """A message for a terminal. The lines of one that lists several stay; those in a name it repeats do not."""
    for word in names:
        for name in (word, word.partition("=")[2]):
            if name.strip() and name != one_line(name):
                text = text.replace(name, one_line(name))
    return plain(text)


def _report(error: GpuisoError, arguments: Sequence[str]) -> int:
    if "--json" in _own(arguments):
        print_object({"error": {"code": error.code, "message": error.message, "hint": error.hint}})
    else:
        names = [*arguments, getattr(error, "file", None) or ""]
        print(_shown(f"gpuiso: {error.message}", names), file=sys.stderr)
        if error.hint:
            print(_shown(f"  {error.hint}", names), file=sys.stderr)
    return error.exit_code


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code (the console script hands it to sys.exit)."""
    arguments = sys.argv[1:] if arguments is None else arguments
    tell_waits.set(lambda sentence: print(plain(f"gpuiso: {sentence}"), file=sys.stderr, flush=True))
    try:
        with standard_streams(), stopping_signals():
            return _answer(arguments)
    except KeyboardInterrupt:
        return 130
    except Stopped as stopped:
        return 128 + stopped.number


def _answer(arguments: Sequence[str]) -> int:
    """The exit code, with everything printed."""
    try:
        try:
            code = _told(arguments)
        except GpuisoError as error:
            code = _report(error, arguments)
        except OSError as error:
            if error.filename is None or error.errno not in _OF_THE_HOST:
                raise
            code = _report(_of_the_host(error), arguments)
        sys.stdout.flush()
    except (ReaderGone, BrokenPipeError):
        return 141  # as a program that SIGPIPE ended: no failure of ours
    except OutputFailed as error:
        print(f"gpuiso: standard output cannot be written: {error.why}", file=sys.stderr)
        return _OUTPUT_FAILED
    return code


def _of_the_host(error: OSError) -> GpuisoError:
    """What a file of the host that is full, damaged or closed to us comes to. A change undoes itself before."""
    message = f"{error.filename}: {error.strerror}"
    return NotPermitted(message) if error.errno in _FORBIDDEN else FailedAndUndone(message)


def _told(arguments: Sequence[str]) -> int:
    if list(arguments) == ["--version"]:
        print(f"gpuiso {__version__}")  # before anything is imported for it
        return 0
    return _run(arguments)
