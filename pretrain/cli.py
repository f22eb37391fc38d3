"""The command line: one function per command, words in, one call, an exit code out."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pretrain import __version__
from pretrain.errors import ConfigError, PretrainError
from pretrain.machine.signals import StopRequest, ignore_stop_signals

if TYPE_CHECKING:
    from pretrain.attempt import AttemptResult

application = typer.Typer(
    name="pretrain",
    no_args_is_help=True,
    add_completion=False,
    # A traceback is for what nobody expected, and never shows the values of local variables.
    pretty_exceptions_enable=False,
    pretty_exceptions_show_locals=False,
    help="Pretraining runs that can be left alone and proved afterwards: text and IQ radio samples.",
)

ConfigOption = Annotated[Path, typer.Option("--config", help="The run's YAML config.", metavar="FILE")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Settings that replace the config's, as KEY=VALUE.", metavar="KEY=VALUE"),
]
Json = Annotated[bool, typer.Option("--json", help="Print the answer as one JSON object on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show only the end of the run.")]


@application.command()
def train(
    config: ConfigOption,
    overrides: Overrides = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the resolved config and train nothing.")
    ] = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Start attempt 0001 of a run and train it to its manifest."""

    def work() -> int:
        if print_config and json_:
            raise ConfigError("--print-config prints YAML: use it without --json")
        stop = _listen()
        with stop.interrupting():
            from pretrain.config import load, to_yaml

            if print_config:
                sys.stdout.write(to_yaml(load(config, overrides or [])))
                return 0
            from pretrain.attempt import start_attempt
            from pretrain.console import Screen

            resolved = load(config, overrides or [])
        with Screen(quiet=quiet) as screen:
            return _answer(start_attempt(resolved, stop, [screen]), json_)

    _run(work, json_)


@application.command()
def resume(
    attempt: Annotated[
        Path, typer.Option("--attempt", help="An attempt, or a run: its newest attempt.", metavar="PATH")
    ],
    overrides: Overrides = None,
    require_bit_exact: Annotated[
        bool, typer.Option("--require-bit-exact", help="Refuse when the surroundings can change a bit.")
    ] = False,
    expect_sha256: Annotated[
        str | None,
        typer.Option("--expect-sha256", help="Refuse unless the parent's record has this hash.", metavar="HEX"),
    ] = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Verify an attempt, open a child attempt and go on to the same bytes."""

    def work() -> int:
        stop = _listen()
        with stop.interrupting():
            from pretrain.attempt import resume_attempt
            from pretrain.console import Screen
        with Screen(quiet=quiet) as screen:
            result = resume_attempt(
                attempt,
                overrides or [],
                stop,
                [screen],
                require_bit_exact=require_bit_exact,
                expect_sha256=expect_sha256,
            )
            return _answer(result, json_)

    _run(work, json_)


@application.command("verify-manifest")
def verify_manifest(
    path: Annotated[Path, typer.Argument(help="An attempt, its manifest.json, a checkpoint folder, or a run.")],
    expect_sha256: Annotated[
        str | None,
        typer.Option("--expect-sha256", help="The SHA-256 that the record itself must have.", metavar="HEX"),
    ] = None,
    follow: Annotated[bool, typer.Option("--lineage", help="Check the attempts it goes on from, too.")] = False,
    sums: Annotated[bool, typer.Option("--sums", help="Print lines for `sha256sum -c` instead.")] = False,
    json_: Json = False,
) -> None:
    """Check every byte that a manifest answers for; exit 3 names what does not verify."""

    def work() -> int:
        from pretrain import lineage

        if sums and (json_ or follow or expect_sha256 is not None):
            raise ConfigError(
                "--sums prints checksums and checks nothing: use it without --json, --lineage and --expect-sha256"
            )
        if sums:
            sys.stdout.write(lineage.sums(path))
            return 0
        reports = lineage.verify_lineage(path, expect_sha256) if follow else [lineage.verify(path, expect_sha256)]
        if json_:
            above = {"lineage": [report.answer() for report in reports[1:]]} if follow else {}
            _print_json(reports[0].answer() | above)
        else:
            sys.stdout.write("".join(report.text() for report in reports))
        return 0 if all(report.sound for report in reports) and reports[0].ok else 3

    _run(work, json_)


@application.command("inspect-checkpoint")
def inspect_checkpoint(
    path: Annotated[Path, typer.Argument(help="A checkpoint folder.")],
    compare: Annotated[
        Path | None,
        typer.Option("--compare", help="Another checkpoint: name the tensors that differ.", metavar="OTHER"),
    ] = None,
    json_: Json = False,
) -> None:
    """Show what a checkpoint holds; reads no pickle and runs no code from it."""

    def work() -> int:
        from pretrain.evidence.inspection import as_text, inspect

        answer = inspect(path, compare)
        if json_:
            _print_json(answer)
        else:
            sys.stdout.write(as_text(answer))
        return 0

    _run(work, json_)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"pretrain {__version__}")
        raise typer.Exit


@application.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Pretraining runs that can be left alone and proved afterwards: text and IQ radio samples."""


def _listen() -> StopRequest:
    stop = StopRequest()
    stop.install()
    return stop


def _answer(result: "AttemptResult", as_json: bool) -> int:
    if as_json:
        _print_json(result.answer())
    return result.exit_code


def _print_json(answer: Any) -> None:
    """Print one JSON object in the spelling of every record: what is not finite is a word."""
    from pretrain.evidence import canonical

    sys.stdout.write(canonical.encode(answer).decode())


def _run(work: Callable[[], int], as_json: bool) -> None:
    """Call `work` and leave with its exit code; an expected fault is one message, any other a traceback and 1."""
    try:
        code = work()
        sys.stdout.flush()
    except PretrainError as error:
        sys.stderr.write(f"pretrain: {error}\n")
        if as_json:
            _print_json({"verdict": error.verdict, "exit_code": error.exit_code, "reason": str(error)})
        code = error.exit_code
    except BrokenPipeError:
        # Whoever read the answer has gone (`| head`): there is nobody left to tell.
        sys.stderr.close()
        code = 1
    except KeyboardInterrupt:
        code = 130
    raise SystemExit(code)


def main() -> None:
    """Run the command that the arguments name; once it has ended, a signal no longer changes its exit code."""
    try:
        application()
    finally:
        ignore_stop_signals()
