"""The command line: one function per command, words in, one call, an exit code out."""

import contextlib
import errno
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pretrain import __version__
from pretrain.errors import ConfigError, OutOfMemoryRunError, PretrainError, StorageError
from pretrain.machine import leaving
from pretrain.machine.signals import StopRequest, ignore_stop_signals
from pretrain.streams import give, json_text, prepare_streams, tell, written

if TYPE_CHECKING:
    from pretrain.attempt import AttemptResult

# What the system says against a path, rather than against the disk below it.
_OF_A_PATH = {errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENOTDIR}

# What the words of the command line can be wrong in; the module that Typer keeps it in differs from version to version.
_UsageError: Any = typer.BadParameter.__mro__[1]

application = typer.Typer(
    name="pretrain",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain text: in boxes the names of options are cut off at 80 columns
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
GpuTempGuard = Annotated[
    bool | None,
    typer.Option(
        "--gpu-temp-guard/--no-gpu-temp-guard", help="Wait or stop when the GPU is hot.", show_default="as configured"
    ),
]
SwitchOnThermal = Annotated[
    bool | None,
    typer.Option(
        "--switch-on-thermal/--no-switch-on-thermal",
        help="Go on on the CPU when the GPU is too hot.",
        show_default="as configured",
    ),
]
Profile = Annotated[
    str | None, typer.Option("--profile", help="Leave a PyTorch profiler trace of these steps.", metavar="FROM:TO")
]
MemorySnapshot = Annotated[
    str | None,
    typer.Option("--memory-snapshot", help="Say what holds the memory at the end of this step.", metavar="STEP"),
]
Json = Annotated[bool, typer.Option("--json", help="Print the answer as one JSON object on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show only warnings and the end of the run.")]


@application.command(short_help="Train a run from its config to its manifest.")
def train(
    config: ConfigOption,
    overrides: Overrides = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the resolved config and train nothing.")
    ] = False,
    gpu_temp_guard: GpuTempGuard = None,
    switch_on_thermal: SwitchOnThermal = None,
    profile: Profile = None,
    memory_snapshot: MemorySnapshot = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Start attempt 0001 of a run and train it to its manifest."""

    settings = [*(overrides or []), *_thermal(gpu_temp_guard, switch_on_thermal)]

    def work() -> int:
        if print_config and json_:
            raise ConfigError("--print-config prints YAML: use it without --json")
        stop = _listen()
        with stop.interrupting():
            from pretrain.config import load, to_yaml, warnings

            if print_config:
                resolved = load(config, settings)
                for text in warnings(resolved):
                    tell(f"warning: {text}")
                return give(to_yaml(resolved))
            from pretrain.attempt import Words, start_attempt
            from pretrain.console import Screen

            resolved = load(config, settings)
        with Screen(quiet=quiet) as screen:
            stalled = partial(_answer, as_json=json_)
            return _answer(start_attempt(resolved, stop, [screen], Words(profile, memory_snapshot), stalled), json_)

    _run(work, json_)


@application.command(short_help="Go on from an attempt, to the same bytes.")
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
    checkpoint: Annotated[
        int | None,
        typer.Option("--checkpoint", help="Go on from this step's checkpoint of the attempt.", metavar="STEP", min=0),
    ] = None,
    migrate: Annotated[
        bool,
        typer.Option(
            "--migrate",
            help="Let scheduler.* change, and training.max_steps downward too: another run from there on, on record.",
        ),
    ] = False,
    require_latest: Annotated[
        bool, typer.Option("--require-latest", help="Refuse where the newest checkpoint does not verify.")
    ] = False,
    gpu_temp_guard: GpuTempGuard = None,
    switch_on_thermal: SwitchOnThermal = None,
    profile: Profile = None,
    memory_snapshot: MemorySnapshot = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Verify an attempt, open a child attempt and go on to the same bytes."""

    def work() -> int:
        if require_latest and checkpoint is not None:
            raise ConfigError("--require-latest asks for the newest checkpoint: use it without --checkpoint")
        stop = _listen()
        with stop.interrupting():
            from pretrain import lineage

            expected = lineage.checked_sha256(expect_sha256)
            from pretrain.attempt import Words, resume_attempt
            from pretrain.console import Screen
        with Screen(quiet=quiet) as screen:
            result = resume_attempt(
                attempt,
                [*(overrides or []), *_thermal(gpu_temp_guard, switch_on_thermal)],
                stop,
                [screen],
                Words(profile, memory_snapshot),
                partial(_answer, as_json=json_),
                require_bit_exact=require_bit_exact,
                expect_sha256=expected,
                step=checkpoint,
                migrate=migrate,
                require_latest=require_latest,
            )
            return _answer(result, json_)

    _run(work, json_)


@application.command("verify-manifest", short_help="Check every byte that a manifest answers for.")
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
    """Check every byte that a manifest answers for; exit 3 names what does not verify, 6 what cannot be read."""

    def work() -> int:
        from pretrain import lineage

        if sums and (json_ or follow or expect_sha256 is not None):
            raise ConfigError(
                "--sums prints checksums and checks nothing: use it without --json, --lineage and --expect-sha256"
            )
        if sums:
            return give(lineage.sums(path))
        reports = lineage.verify_lineage(path, expect_sha256) if follow else [lineage.verify(path, expect_sha256)]
        migrated = lineage.migrations(reports[0]) if follow else []
        code = lineage.exit_code(reports)
        if not json_:
            told = [lineage.migration_text(row) for row in migrated]
            cut = lineage.cut_text(path) if follow else ""
            return give("".join([*(report.text() for report in reports), *told, cut]), code)
        above = {"lineage": [report.answer() for report in reports[1:]], "migrated": migrated} if follow else {}
        return give(json_text(reports[0].answer() | above), code)

    _run(work, json_)


@application.command("inspect-checkpoint", short_help="Show what a checkpoint holds.")
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
        return give(json_text(answer) if json_ else as_text(answer))

    _run(work, json_)


@application.command(short_help="Run an incident's step again.")
def replay(
    incident: Annotated[
        Path, typer.Option("--incident", help="The file of an incident, in its attempt.", metavar="PATH")
    ],
    overrides: Overrides = None,
    json_: Json = False,
) -> None:
    """Run an incident's step again from the nearest checkpoint and say what it was; changes nothing."""

    def work() -> int:
        stop = _listen()
        with stop.interrupting():
            from pretrain.attempt import replay_incident

            replayed = replay_incident(incident, overrides or [])
        return give(json_text(replayed.answer()) if json_ else replayed.text())

    _run(work, json_)


@application.command(short_help="Say what a run will take.")
def plan(
    config: ConfigOption,
    overrides: Overrides = None,
    coordinate_check: Annotated[
        bool, typer.Option("--coordinate-check", help="Train a few steps at several widths, with and without muP.")
    ] = False,
    widths: Annotated[str | None, typer.Option("--widths", help="By default 64,128,256,512.", metavar="W,W")] = None,
    output: Annotated[Path | None, typer.Option("--output", help="Draw the check as an SVG.", metavar="FILE")] = None,
    json_: Json = False,
) -> None:
    """Say what a run will take: parameters, FLOPs, memory, disk; writes nothing but the picture it is asked for."""

    def work() -> int:
        with _listen().interrupting():
            from pretrain.plan import plan_asked

            found = plan_asked(config, overrides or [], coordinate_check, widths, output)
        return give(json_text(found.answer()) if json_ else found.text())

    _run(work, json_)


def _version(asked: bool) -> None:
    if asked:
        raise typer.Exit(give(f"pretrain {__version__}\n"))


@application.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Pretraining runs that can be left alone and proved afterwards: text and IQ radio samples."""


def _thermal(gpu_temp_guard: bool | None, switch_on_thermal: bool | None) -> list[str]:
    """The overrides that the options of the thermal guard are; they come after those that are written out."""
    given = {"gpu_temp_guard": gpu_temp_guard, "switch_on_thermal": switch_on_thermal}
    return [f"thermal.{key}={'true' if value else 'false'}" for key, value in given.items() if value is not None]


def _listen() -> StopRequest:
    """Hear signals from here on. Raises ConfigError where the current folder is gone, in which no library loads."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise ConfigError("the current folder has been removed; change to one that is there") from None
    stop = StopRequest()
    stop.install()
    return stop


def _answer(result: "AttemptResult", as_json: bool) -> int:
    return give(json_text(result.answer()), result.exit_code, is_all=False) if as_json else result.exit_code


def _run(work: Callable[[], int], as_json: bool) -> None:
    """Call `work` and leave with its exit code; an expected fault is one message, any other a traceback and 1."""
    try:
        code = work()
    except PretrainError as error:
        code = _refuse(error, as_json)
    except OSError as error:
        code = _refuse(_fault_of(error), as_json)
    except MemoryError as error:  # before there is an attempt, which says what needs less
        text = f"the memory of this machine does not suffice{f': {error}' if str(error) else ''}; free some, then go on"
        code = _refuse(OutOfMemoryRunError(text), as_json)
    except KeyboardInterrupt:
        code = 130
    raise SystemExit(code)


def _refuse(error: PretrainError, as_json: bool) -> int:
    """Tell why, and return the exit code, which stands whether or not anybody could be told."""
    tell(str(error))
    if as_json:
        written(sys.stdout, json_text(_refusal(error)))
    return error.exit_code


def _refusal(error: PretrainError) -> dict[str, Any]:
    return {"verdict": error.verdict, "exit_code": error.exit_code, "reason": str(error)}


def _fault_of(error: OSError) -> PretrainError:
    """What the system says against a path is a fault of usage; anything else is one of the machine."""
    reason = error.strerror or str(error)
    if not isinstance(error.filename, str | bytes):
        return StorageError(reason)
    text = f"{os.fsdecode(error.filename)}: {reason}"
    return ConfigError(text) if error.errno in _OF_A_PATH else StorageError(text)


def main() -> None:
    """Run the command that the arguments name; once it has ended, nothing changes its exit code or keeps the process.

    A signal is ignored then, and the end of a tracker's library is not waited for.
    """
    leaving.forget_guests()
    prepare_streams()
    try:
        raise SystemExit(application(standalone_mode=False))
    except _UsageError as error:
        error.show()
        if "--json" in sys.argv[1:]:
            written(sys.stdout, json_text(_refusal(ConfigError(error.format_message()))))
        raise SystemExit(ConfigError.exit_code) from None
    except OSError as error:  # of the text of --help: a command's own faults have become exit codes
        tell(f"stdout: the answer cannot be written: {error.strerror or error}")
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.close()
        raise SystemExit(StorageError.exit_code) from None
    finally:
        ignore_stop_signals()
        leaving.leave_guests(sys.exception())
