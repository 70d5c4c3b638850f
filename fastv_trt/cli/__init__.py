"""The command line: one file per command. Bad input is one line on stderr and exit 2, a failure exit 1."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

import typer

from fastv_trt import __version__
from fastv_trt.cli import lean
from fastv_trt.cli.bench import bench
from fastv_trt.cli.build import build
from fastv_trt.cli.calibrate import calibrate
from fastv_trt.cli.check import check
from fastv_trt.cli.demo import demo
from fastv_trt.cli.doctor import doctor
from fastv_trt.cli.export import export
from fastv_trt.cli.families import families
from fastv_trt.cli.flops import flops
from fastv_trt.cli.inspect import inspect
from fastv_trt.cli.plan import plan
from fastv_trt.cli.quantize import quantize
from fastv_trt.cli.run import run
from fastv_trt.cli.verify import verify
from fastv_trt.errors import FastVError

app = typer.Typer(
    name="fastv-trt",
    help="Prune a vision-language model's image tokens inside its decoder, and deploy it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"fastv-trt {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Options that stand before the command."""


for command in (
    plan,
    export,
    run,
    verify,
    inspect,
    bench,
    flops,
    calibrate,
    quantize,
    check,
    build,
    doctor,
    demo,
    families,
):
    app.command()(command)


def _terminate(number: int, frame: FrameType | None) -> None:
    """Leave by an exception, so that what is half-written is removed on the way out."""
    os.write(2, f"fastv-trt: ended by {signal.Signals(number).name}\n".encode())  # print may be what it interrupts
    sys.exit(128 + number)


def program() -> None:
    """The process `fastv-trt`: `main`, where nothing but one command will run, so that what it needs not stays out."""
    lean.one_command = True
    main()


def main() -> None:
    """Run one command of `sys.argv`. Set FASTV_TRT_DEBUG=1 to see tracebacks."""
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:  # nohup's choice stands
            signal.signal(number, _terminate)
    if os.environ.get("FASTV_TRT_DEBUG"):
        app()
    try:
        app()
    except FastVError as error:
        print(f"fastv-trt: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("fastv-trt: interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of a pipe went away: not our failure
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        print(
            f"fastv-trt: unexpected {type(error).__name__}: {reason[:300]}; set FASTV_TRT_DEBUG=1 for the traceback",
            file=sys.stderr,
        )
        sys.exit(1)
