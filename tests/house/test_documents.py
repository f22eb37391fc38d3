"""What the documents say is so: commands, options, exit codes, targets, paths, the tree, the configs in them."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from pretrain import cli, errors
from pretrain.config import RESUMABLE, load, parse
from pretrain.errors import PretrainError
from tests.drill.changed_keys import all_keys, allow_list
from tests.drill.layers import LAYERS

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
README = (ROOT / "README.md").read_text()
INTEGRITY = (ROOT / "docs/integrity.md").read_text()
TEXT = "\n".join(path.read_text() for path in DOCUMENTS)
COMMANDS: Any = typer.main.get_command(cli.application)

of_each_document = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())


def blocks(text: str, *languages: str) -> list[str]:
    """The code blocks of a document that are of one of these languages."""
    return [body for language, body in re.findall(r"```(\w*)\n(.*?)```", text, re.DOTALL) if language in languages]


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """Every `pretrain` command in a block, with the words after it up to a redirection or `&`."""
    for path in DOCUMENTS:
        for block in blocks(path.read_text(), "sh", "bash"):
            for line in block.replace("\\\n", " ").splitlines():
                command = re.search(r"(?:^|srun )pretrain (.*)", line.strip())
                if command:
                    words = shlex.split(command[1], comments=True)
                    ends = [words.index(sign) for sign in (">", "&") if sign in words]
                    yield f"{path.name}: {line.strip()}", words[: min(ends, default=None)]


LINES = dict(command_lines())


def test_every_command_and_option_is_documented() -> None:
    options = {option for parameter in COMMANDS.params for option in parameter.opts}
    for name, command in COMMANDS.commands.items():
        assert f"pretrain {name}" in TEXT, name
        options |= {option for parameter in command.params for option in parameter.opts if option.startswith("--")}
    assert options >= {"--config", "--attempt", "--json", "--version"}
    missing = sorted(option for option in options if not re.search(rf"{option}\b", TEXT))
    assert not missing


@pytest.mark.parametrize("line", LINES)
def test_every_command_line_is_one_that_the_program_takes(line: str) -> None:
    name, *words = LINES[line]
    if name == "--version":
        return
    context = COMMANDS.commands[name].make_context(name, words)
    config = context.params.get("config")
    if config is not None and (ROOT / config).is_file():
        load(ROOT / config, context.params["overrides"] or [])


def test_every_exit_code_is_in_the_table() -> None:
    table = {int(code) for code in re.findall(r"^\| (\d+) \|", README, re.MULTILINE)}
    classes = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, PretrainError)]
    assert table == {0, *(one.exit_code for one in classes)}


@of_each_document
def test_every_make_target_exists(path: Path) -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z][a-z-]*)", path.read_text(), re.MULTILINE))
    assert named <= targets


def test_the_readme_begins_with_the_two_commands() -> None:
    (first, *_) = blocks(README, "sh")
    assert [line.split("#")[0].strip() for line in first.splitlines()] == ["make quickstart", "make test"]


@of_each_document
def test_every_link_leads_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if target.startswith(("https://", "http://")):
            continue
        name, _, anchor = target.partition("#")
        linked = (path.parent / name).resolve() if name else path
        assert linked.is_relative_to(ROOT), target
        assert linked.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)", linked.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@of_each_document
def test_every_path_of_the_repository_exists(path: Path) -> None:
    places = r"`((?:configs|docs|tests|pretrain|scripts|benchmarks|\.ci)/[\w./-]*)`"
    for name in re.findall(places, path.read_text()):
        assert (ROOT / name).exists() or "NAME" in name, name


def test_the_tree_names_every_module_and_folder() -> None:
    tree = next(block for block in blocks(README, "") if block.startswith("pretrain/"))
    inside, _, outside = tree.partition("\nconfigs/")
    modules = {path.name for path in (ROOT / "pretrain").glob("*.py")} - {"__init__.py"}
    packages = {f"{path.parent.name}/" for path in (ROOT / "pretrain").glob("*/__init__.py")}
    assert set(re.findall(r"^  (\S+)", inside, re.MULTILINE)) == modules | packages
    folders = set(re.findall(r"^(\S+/)", "configs/" + outside, re.MULTILINE))
    assert folders == {"configs/", "scripts/", "benchmarks/", "tests/", "docs/"}


@pytest.mark.parametrize("number", range(len(blocks(README, "yaml"))))
def test_a_config_of_the_readme_loads(number: int) -> None:
    config = parse(blocks(README, "yaml")[number], "README.md")
    assert not config.validates_on_training_data


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.name)
def test_a_config_begins_with_its_command(path: Path) -> None:
    comment = path.read_text().partition("\n\n")[0]
    assert all(line.startswith("#") for line in comment.splitlines())
    assert f"pretrain train --config configs/{path.name}" in comment


def test_what_a_resume_may_change_is_what_the_program_lets_it() -> None:
    assert tuple(allow_list()) == RESUMABLE


def test_every_layer_of_the_drill_is_named_where_its_promise_is_and_in_the_list() -> None:
    promises, _, drill = INTEGRITY.partition("## The drill")
    listed = dict(re.findall(r"^\| (L\d+[a-z]?) \| (.+) \|$", drill, re.MULTILINE))
    held = {
        name
        for row in re.findall(r"^\|.*\| ([^|]*) \|$", promises, re.MULTILINE)
        for name in re.findall(r"L\d+[a-z]?", row)
    }
    assert listed.keys() == held
    assert {layer.name for layer in LAYERS} == listed.keys()


def test_every_key_of_the_promises_is_a_setting() -> None:
    sections = "|".join(sorted({key.partition(".")[0] for key in all_keys()}))
    named = set(re.findall(rf"`((?:{sections})\.[a-z_.*]+)`", INTEGRITY)) - {"telemetry.csv"}
    assert named >= {"training.deterministic", *RESUMABLE}
    patterns = {key: re.escape(key).replace(r"\*", ".+") for key in named}
    assert not [key for key, one in patterns.items() if not any(re.fullmatch(one, known) for known in all_keys())]


def test_every_decision_is_in_their_list() -> None:
    folder = ROOT / "docs" / "decisions"
    names = [path.name for path in sorted(folder.glob("[0-9]*.md"))]
    listed = re.findall(r"\]\((\d{4}-[a-z0-9-]+\.md)\)", (folder / "README.md").read_text())
    assert listed == names
    for number, name in enumerate(names, start=1):
        text = (folder / name).read_text()
        assert text.startswith(f"# {number:04d}. ")
        assert [word in text for word in ("**Context.**", "**Decision.**", "**Consequences.**")] == [True] * 3


def test_every_test_folder_has_a_time_budget() -> None:
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/__init__.py")}
    rows = (ROOT / "CONTRIBUTING.md").read_text().partition("## Time of the tests")[2]
    assert set(re.findall(r"^\| `tests/(\w+)`", rows, re.MULTILINE)) == folders
