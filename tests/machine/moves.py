"""Every place of the package that counts progress, as its syntax trees name it, and those that some work comes by."""

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pretrain import progress

PACKAGE = Path(__file__).parents[2] / "pretrain"


def counting(tree: ast.AST, inside: tuple[str, ...] = ()) -> Iterator[str]:
    """The function around each mention of `progress.moved`; an import under another name is one that nobody finds."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield from counting(node, (*inside, name, "<locals>"))
            case ast.Lambda():
                yield from counting(node, (*inside, "<lambda>", "<locals>"))
            case ast.ClassDef(name=name):
                yield from counting(node, (*inside, name))
            case ast.Attribute(value=ast.Name(id="progress"), attr="moved"):
                yield ".".join(inside).removesuffix(".<locals>")
            case ast.ImportFrom(module="pretrain.progress"):
                yield f"line {node.lineno}: imports from pretrain.progress; import the module itself"
            case ast.Import(names=names) if any(one.name == "pretrain.progress" for one in names):
                yield f"line {node.lineno}: imports under another name than progress"
            case ast.ImportFrom(names=names) if any(one.name == "progress" and one.asname for one in names):
                yield f"line {node.lineno}: imports under another name than progress"
            case _:
                yield from counting(node, inside)


def places() -> Counter[str]:
    """How often each `MODULE: FUNCTION` of the package mentions `progress.moved`."""
    return Counter(
        f"{path.relative_to(PACKAGE).as_posix()}: {function}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for function in counting(ast.parse(path.read_text()))
    )


@contextmanager
def moves() -> Iterator[Counter[str]]:
    """Count by place what is counted in here, and check that the number that a watchdog looks at rises as often."""
    found: Counter[str] = Counter()
    real, before = progress.moved, progress.count()

    def moved() -> None:
        code = sys._getframe(1).f_code
        found[f"{Path(code.co_filename).relative_to(PACKAGE).as_posix()}: {code.co_qualname}"] += 1
        real()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "moved", moved)
        yield found
    assert progress.count() - before == found.total()
