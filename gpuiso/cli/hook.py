# SPDX-License-Identifier: Apache-2.0
"""``gpuiso hook``: the OCI hook on this host, what it knows, and who calls it."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from gpuiso.cli.hook_inject import inject
from gpuiso.cli.hook_seccomp import seccomp
from gpuiso.cli.render.objects import print_object
from gpuiso.cli.render.plain import one_line
from gpuiso.errors import BadInput, NotFound

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="The OCI hook that holds containers to their GPUs.")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
HookPath = Annotated[str, typer.Option("--path", metavar="FILE", help="Where the program is.")]
Library = Annotated[str, typer.Option("--library", metavar="DIR", help="Where its modules are.")]
HooksDir = Annotated[str, typer.Option("--hooks-dir", metavar="DIR", help="Where podman and CRI-O look for hooks.")]
Policies = Annotated[str, typer.Option("--policies", metavar="DIR", help="Where the administrator's policies are.")]
Tables = Annotated[str, typer.Option("--tables", metavar="DIR", help="Where the hook reads what is compiled.")]
CdiDir = Annotated[str, typer.Option("--cdi-dir", metavar="DIR", help="Where the CDI devices of policies are written.")]

HOOK_PATH = "/usr/bin/gpuiso-hook"
LIBRARY = "/usr/lib/gpuiso-hook"
HOOKS_D = "/etc/containers/oci/hooks.d"
POLICIES = "/etc/gpuiso/policy.d"
TABLES = "/run/gpuiso/hook"
CDI = "/var/run/cdi"


@app.command("install")
def install_hook(
    path: HookPath = HOOK_PATH,
    library: Library = LIBRARY,
    hooks_dir: HooksDir = HOOKS_D,
    no_definitions: Annotated[bool, typer.Option("--no-definitions", help="Write no hooks.d files.")] = False,
    always: Annotated[
        bool,
        typer.Option(
            "--always",
            help="hooks.d files for every container, so that grants hold for all. Default: for"
            " those with an annotation of gpuiso's.",
        ),
    ] = False,
    python: Annotated[
        str | None,
        typer.Option("--python", metavar="FILE", help="The interpreter. Default: /usr/bin/python3, or our own."),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Take everything away again.")] = False,
) -> None:
    """Put gpuiso-hook in place, or bring it up to date.

    Files in hooks.d tell podman and CRI-O of it.

    \b
    Examples:
        gpuiso hook install && gpuiso hook refresh
        gpuiso hook install --always
        gpuiso hook install --hooks-dir /usr/share/containers/oci/hooks.d
        gpuiso hook install --remove

    \b
    Exit codes: 0 done; 2 wrong usage, or something that is not gpuiso's is there; 3 not permitted; 5 no Python here
    that the hook can run with; 7 it failed and was undone; 8 it could not be undone.
    """
    from gpuiso.hookset.files import install
    from gpuiso.hookset.files import remove as remove_files

    definitions = None if no_definitions else hooks_dir
    if remove:
        for gone in remove_files(path=path, library=library, definitions=definitions):
            say(f"removed {gone}")
        return
    chosen = (
        python
        if python is not None
        else ("/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else os.path.realpath(sys.executable))
    )
    done = install(chosen, path=path, library=library, definitions=definitions, always=always)
    for name in (done.launcher, done.library, *done.definitions):
        say(f"{name}")


@app.command("show")
def show(
    path: HookPath = HOOK_PATH,
    hooks_dir: HooksDir = HOOKS_D,
    policies: Policies = POLICIES,
    tables: Tables = TABLES,
    as_json: Json = False,
) -> None:
    """Show what of the hook is here, and which GPUs it knows.

    Also shows which policies it knows, and what of it is out of date.

    \b
    Examples:
        gpuiso hook show
        gpuiso hook show --json

    \b
    Exit codes: 0 the hook is in place; 4 it is not.
    """
    from gpuiso.hookset.files import installed
    from gpuiso.hookset.known import known

    here = installed(path=path, definitions=hooks_dir)
    what = known(tables, policies)
    if as_json:
        print_object(
            {
                "gpuiso": "hook-show/1",
                "path": here.launcher if here.version is not None else None,
                "library": here.library,
                "version": here.version,
                "current": here.current,
                "definitions": list(here.definitions),
                "gpus": None if what.gpus is None else list(what.gpus),
                "policies": list(what.policies),
                "grants": what.grants,
                "problems": list(what.problems),
            }
        )
    elif here.version is not None:
        say(f"{here.launcher}: version {here.version}{'' if here.current else ', not that of this gpuiso'}")
        say(f"modules: {here.library}")
        say(f"definitions: {', '.join(here.definitions) or 'none'}")
        say(f"GPUs: {'not known, run gpuiso hook refresh' if what.gpus is None else ', '.join(what.gpus) or 'none'}")
        say(f"policies: {', '.join(what.policies) or 'none'}")
        say(_grants(what.grants))
        for problem in what.problems:
            say(f"warning: {problem}", err=True)
    if here.version is None:
        if as_json:
            raise typer.Exit(NotFound.exit_code)
        raise NotFound(f"no hook at {path}", hint="gpuiso hook install puts it there")


@app.command("refresh")
def refresh_tables(
    policies: Policies = POLICIES,
    tables: Tables = TABLES,
    cdi_dir: CdiDir = CDI,
    path: HookPath = HOOK_PATH,
    as_json: Json = False,
) -> None:
    """Compile policies, grants and the table of GPUs for the hook.

    Needed after every boot and every change of a file. Each policy also becomes a CDI device, gpuiso.dev/policy=NAME.

    \b
    Examples:
        gpuiso hook refresh
        gpuiso hook refresh --policies ./policy.d --json

    \b
    Exit codes: 0 all compiled; 2 a file is wrong (the others are in place, grants stay as they were); 3 not permitted;
    7 they could not be written.
    """
    from gpuiso.cdi.refresh import write_spec
    from gpuiso.hookset.definitions import policy_spec
    from gpuiso.hookset.places import check_absolute
    from gpuiso.hookset.tables import refresh
    from gpuiso.host import open_host

    check_absolute("--path", path)
    host = open_host()
    done = refresh(host, policies, tables)
    file = f"{cdi_dir}/gpuiso-policy.yaml"
    if done.policies:
        write_spec(host, file, policy_spec(done.policies, path))
    elif os.path.exists(file):
        os.unlink(file)
    if as_json:
        errors = [error.message for error in done.errors]
        print_object(
            {
                "gpuiso": "hook-refresh/1",
                "gpus": list(done.gpus),
                "policies": list(done.policies),
                "grants": done.grants,
                "problems": list(done.problems),
                "errors": errors,
            }
        )
    else:
        say(f"GPUs: {', '.join(done.gpus) or 'none'}")
        say(f"policies: {', '.join(done.policies) or 'none'}")
        say(_grants(done.grants))
        for problem in done.problems:
            say(f"warning: {problem}", err=True)
        for error in done.errors:
            say(f"gpuiso: {error.message}", err=True)
            if error.hint:
                say(f"  {error.hint}", err=True)
    if done.errors:
        raise typer.Exit(BadInput.exit_code)


app.command("inject")(inject)
app.command("seccomp")(seccomp)


def _grants(count: int | None) -> str:
    return "grants: none limits containers" if count is None else f"grants: {count} for containers"


def say(text: str, *, err: bool = False) -> None:
    """A line for people; what came out of a file cannot steer the terminal, nor feign another line."""
    typer.echo(one_line(text), err=err)
