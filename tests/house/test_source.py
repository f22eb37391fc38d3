"""What no module of the package may do, read off its syntax tree."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "pretrain"
MODULES = sorted(PACKAGE.rglob("*.py"))
LINES_LIMIT = 400
ONE_SENTENCE = re.compile(r"(?:(?!\n\n|[.!?] [A-Z]).)+\.", re.DOTALL)

# Modules that write, move or remove files, or that run code out of data.
FORBIDDEN_IMPORTS = {
    *("pickle", "dill", "cloudpickle", "marshal", "shelve", "dbm", "joblib", "sqlite3"),
    *("shutil", "tempfile", "fileinput", "mmap", "csv"),
}
# Methods of a path, or functions of os, torch and numpy, by the name that they are called by.
FORBIDDEN_CALLS = {
    *("write_text", "write_bytes", "touch", "unlink", "rename", "renames", "rmdir", "mkdir", "makedirs"),
    *("removedirs", "symlink", "symlink_to", "link", "hardlink_to", "fsync", "fdatasync"),
    *("tofile", "savez", "savez_compressed", "savetxt", "memmap", "open_memmap", "fromfile"),
}
FORBIDDEN_OF = {
    "os": {
        "write",
        "pwrite",
        "writev",
        "truncate",
        "ftruncate",
        "remove",
        "replace",
        "mkfifo",
        "mknod",
        "sendfile",
        "copy_file_range",
    },
    "system": {"write", "truncate", "replace"},
    "torch": {"load", "save"},
    "np": {"load", "save"},
    "json": {"load", "dump"},
    "yaml": {"load", "unsafe_load", "full_load", "dump"},
}
# A thread of its own takes whatever a foreign library raises, and the training tells of it: see the comment there.
CATCHES_ALL = {"telemetry/trackers/feed.py"}
WRITING_FLAGS = {"O_WRONLY", "O_RDWR", "O_CREAT", "O_APPEND", "O_TRUNC", "O_TMPFILE"}

TREES = {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text()) for path in MODULES}


def writes(tree: ast.AST) -> Iterator[str]:
    """Every place where a module does what only files.py may do, with the calls of syscalls.py."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                imported = {name.name.split(".")[0] for name in names}
            case ast.ImportFrom(module=str(module)):
                imported = {module.split(".")[0]}
            case _:
                imported = set()
        yield from (f"imports {name}" for name in sorted(imported & FORBIDDEN_IMPORTS))
        if isinstance(node, ast.Attribute) and node.attr in WRITING_FLAGS:
            yield f"line {node.lineno}: opens with {node.attr}"
        if isinstance(node, ast.Call):
            yield from _call(node)


def _call(node: ast.Call) -> Iterator[str]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    owner = node.func.value if isinstance(node.func, ast.Attribute) else None
    of = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
    if name in FORBIDDEN_CALLS or name in FORBIDDEN_OF.get(of, ()):
        yield f"line {node.lineno}: calls {of}.{name}"
    # A text is replaced by two arguments and a dataclass by keywords; a file is replaced by one.
    if name == "replace" and owner is not None and len(node.args) == 1 and not node.keywords:
        yield f"line {node.lineno}: renames by replace"
    if name == "open" and of != "os":
        given = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
        given += [
            word.value.value for word in node.keywords if word.arg == "mode" and isinstance(word.value, ast.Constant)
        ]
        modes = [mode for mode in given if isinstance(mode, str) and re.fullmatch(r"[rwxabt+]+", mode)]
        if any(set(mode) & set("wxa+") for mode in modes):
            yield f"line {node.lineno}: opens for writing"


def test_only_files_writes() -> None:
    found = {name: {text.rpartition(" ")[2] for text in writes(tree)} for name, tree in TREES.items()}
    assert found.pop("syscalls.py") >= {"os.write", "os.fsync", "os.replace", "os.unlink"}
    assert found.pop("files.py") >= {"O_CREAT", "system.write", "system.fsync", "system.replace", "system.unlink"}
    assert found.pop("lock.py") == {"O_CREAT", "O_RDWR"}
    assert {name: texts for name, texts in found.items() if texts} == {}


@pytest.mark.parametrize(
    "line",
    [
        *("import pickle", "from shutil import rmtree", "torch.load(path)", "torch.save(state, path)"),
        *("path.open('w')", "open(path, mode='ab')", "open(path, 'r+b')", "path.write_text(text)", "os.remove(path)"),
        *("path.replace(other)", "os.replace(a, b)", "os.open(path, os.O_RDONLY | os.O_CREAT)", "np.save(path, array)"),
        *("syscalls.system.write(fd, data)", "system.truncate(fd, 0)", "syscalls.system.replace(a, b)"),
    ],
)
def test_a_line_that_writes_is_seen(line: str) -> None:
    assert list(writes(ast.parse(line)))


@pytest.mark.parametrize(
    "line", ["path.open('rb')", "open(fd, 'rb')", "text.replace('a', 'b')", "replace(config, run=run)"]
)
def test_a_line_that_does_not_write_is_let_through(line: str) -> None:
    assert not list(writes(ast.parse(line)))


def wholesale(tree: ast.AST) -> Iterator[str]:
    """Every handler that catches what it cannot know."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        names = {getattr(one, "id", None) for one in caught}
        if node.type is None or "Exception" in names:
            yield f"line {node.lineno}: catches everything"
        elif "BaseException" in names and not isinstance(node.body[-1], ast.Raise):
            yield f"line {node.lineno}: swallows BaseException"  # to tidy up and go on falling is another thing


def test_no_exception_is_caught_wholesale() -> None:
    found = {name: list(wholesale(tree)) for name, tree in TREES.items()}
    assert [len(found.pop(name)) for name in sorted(CATCHES_ALL)] == [1]
    assert {name: texts for name, texts in found.items() if texts} == {}


def test_a_file_is_one_thing() -> None:
    lengths = {path.relative_to(PACKAGE).as_posix(): len(path.read_text().splitlines()) for path in MODULES}
    assert {name for name, lines in lengths.items() if lines > LINES_LIMIT} == set()


def test_a_module_begins_with_one_sentence() -> None:
    docstrings = {name: ast.get_docstring(tree) or "" for name, tree in TREES.items()}
    assert {name: words for name, words in docstrings.items() if not ONE_SENTENCE.fullmatch(words)} == {}


def test_no_drawers() -> None:
    """No room is named after having no name."""
    names = {part.removesuffix(".py") for path in MODULES for part in path.relative_to(PACKAGE).parts}
    assert not names & {"utils", "util", "common", "helpers", "core", "base", "manager", "misc", "trainer"}
