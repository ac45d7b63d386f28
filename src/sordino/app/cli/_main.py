"""The command line: ``sordino plan``, ``recipes``, ``influence``, ``spectrum``, ``train``,
``predict``, ``verify``, ``demo``, ``audit``, ``ledger``, ``federated``, ``party``.

Heavy imports happen inside the commands, so that ``sordino --help`` answers at once. Bad input ends
in one line on standard error and exit code 2; Ctrl-C in exit code 130.
"""

from __future__ import annotations

import _thread
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from typer.core import TyperGroup

from sordino._base.errors import MissingExtraError, SordinoError
from sordino._version import __version__
from sordino.app.cli._audit import app as audit
from sordino.app.cli._console import INTERRUPTED, err, say_error, spoken_warnings
from sordino.app.cli._demo import demo
from sordino.app.cli._federated import app as federated
from sordino.app.cli._influence import influence, spectrum
from sordino.app.cli._ledger import app as ledger
from sordino.app.cli._party import app as party
from sordino.app.cli._plan import plan, recipes
from sordino.app.cli._released import predict, verify
from sordino.app.cli._train import train

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

    from click import Context

BAD_INPUT = 2


class CommandGroup(TyperGroup):
    """Turns errors into one line and an exit code, for every command alike."""

    def invoke(self, ctx: Context) -> object:
        try:
            with spoken_warnings():
                return super().invoke(ctx)
        except (SordinoError, MissingExtraError) as error:
            say_error(error)
        except MemoryError:
            say_error("there is not enough memory for this; use smaller batches or fewer columns")
        except BrokenPipeError:
            raise  # `sordino recipes | head` is no error; the framework ends quietly
        except OSError as error:
            say_error(f"{error.strerror or error}: {error.filename or 'unknown file'}")
        except KeyboardInterrupt:
            err().print("stopped; nothing was written", soft_wrap=True)
            raise typer.Exit(INTERRUPTED) from None
        raise typer.Exit(BAD_INPUT)


# Commands of 0.5 that are elsewhere now: each says where, for one release.
_Rest = Annotated[list[str] | None, typer.Argument(hidden=True)]


def bench(rest: _Rest = None) -> None:
    """Moved to the repository: python -m benchmarks run."""
    raise SordinoError(
        "the experiments are part of the repository, not of the package; in a checkout of it, run "
        "`python -m benchmarks run`"
    )


def calibration(rest: _Rest = None) -> None:
    """Moved to the repository: python -m benchmarks calibration."""
    raise SordinoError(
        "the papers' printed calibrations are part of the repository, not of the package; in a checkout "
        "of it, run `python -m benchmarks calibration`"
    )


app = typer.Typer(
    name="sordino",
    cls=CommandGroup,
    help="Train models with differential privacy: plan first, then run.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_COMMANDS: tuple[Callable[..., None], ...] = (
    *(plan, recipes, influence, spectrum),
    *(train, predict, verify, demo),
)
for command in _COMMANDS:
    app.command()(command)
for command in (bench, calibration):
    app.command(hidden=True, context_settings={"ignore_unknown_options": True})(command)
app.add_typer(audit, name="audit")
app.add_typer(ledger, name="ledger")
app.add_typer(federated, name="federated")
app.add_typer(party, name="party")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sordino {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    """The entry point."""
    run_app(app)


def run_app(commands: Callable[[], object]) -> None:
    """Run a command line to its end; Ctrl-C ends it without a traceback, wherever it comes."""
    sys.unraisablehook = _insisting(sys.unraisablehook)
    try:
        commands()
    except KeyboardInterrupt:
        # Before a command began, or while it was being cleaned up after: no traceback there either.
        _leave()
    except SystemExit as ended:
        if ended.code == INTERRUPTED:
            _leave()
        raise


def _insisting(
    before: Callable[[UnraisableHookArgs], object],
) -> Callable[[UnraisableHookArgs], None]:
    """A hook that raises Ctrl-C again where it got lost.

    It may arrive inside a callback of the garbage collector, of which jax has one: the interpreter
    prints the exception there, and goes on.
    """

    def hook(lost: UnraisableHookArgs) -> None:
        if issubclass(lost.exc_type, KeyboardInterrupt):
            threading.Timer(0.05, _thread.interrupt_main).start()
        else:
            before(lost)

    return hook


def _leave() -> NoReturn:
    """End an interrupted process at once, when everything has been said and tidied up.

    The steps in flight go on in threads of their own, which crash the interpreter if it is taken
    down around them.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
