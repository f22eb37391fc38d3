"""A disk as a power cut may leave it: names and bytes that no fsync has made durable are there, or not, or in part."""

import base64
import itertools
import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

MOST = 128  # states that are made of one cut; beyond that they are drawn
Operation: TypeAlias = Sequence[Any]
Tree: TypeAlias = dict[str, bytes | None]  # the bytes of each file by its path; a folder has None
_IS_THERE = [False, True]  # of a change of a name
_WRITTEN, _SYNCED = 0, 1  # of `File.fates`


@dataclass(eq=False)
class File:
    """A file: what it holds, and what of that the last fsync has made durable."""

    content: bytes = b""
    durable: bytes = b""

    def fates(self) -> list[bytes]:
        """Return what the file can hold after a cut: all, what is durable, half of the rest, or zeros for the rest."""
        length = len(self.durable) if self.content.startswith(self.durable) else 0
        known, rest = self.content[:length], self.content[length:]
        half, zeros = known + rest[: len(rest) // 2], known + bytes(len(rest))
        return list(dict.fromkeys((self.content, self.durable, half, zeros)))


@dataclass(eq=False)
class Folder:
    """A folder: its names, those that are durable, and what was done to them since, in the order of time.

    A change is a dictionary: what each name that it touches leads to afterwards, None = to nothing.
    """

    names: "dict[str, File | Folder]" = field(default_factory=dict)
    durable: "dict[str, File | Folder]" = field(default_factory=dict)
    changes: "list[dict[str, File | Folder | None]]" = field(default_factory=list)

    def change(self, names: "dict[str, File | Folder | None]") -> None:
        self.changes.append(names)
        self.names = _changed(self.names, names)

    def sync(self) -> None:
        self.durable, self.changes = self.names, []

    def after(self, changes: "Sequence[dict[str, File | Folder | None]]") -> "dict[str, File | Folder]":
        """Return the names after a cut that has let these of the changes through."""
        names = self.durable
        for change in changes:
            names = _changed(names, change)
        return names


def _changed(
    names: "dict[str, File | Folder]", change: "dict[str, File | Folder | None]"
) -> "dict[str, File | Folder]":
    return {name: node for name, node in {**names, **change}.items() if node is not None}


class Disk:
    """The disk that the operations of a `Recording` lead to.

    announced: the newest checkpoint that a person was told of, -1 = none. done: a person was told that the run is done.
    """

    def __init__(self) -> None:
        self.root = Folder()
        self.announced, self.done = -1, False
        self._open: dict[int, File] = {}

    def do(self, operation: Operation) -> None:
        """Do what a line of the record says."""
        match operation:
            case "create", fd, path:
                self._open[fd] = File()
                self._change(path, self._open[fd])
            case "open", fd, path:
                node = self._at(path)
                assert isinstance(node, File)
                self._open[fd] = node
            case "write", fd, data:
                self._open[fd].content += base64.b64decode(data)
            case "truncate", fd, length:
                self._open[fd].content = self._open[fd].content[:length]
            case "fsync", fd:
                self._open[fd].durable = self._open[fd].content
            case "fsync_folder", "..":
                pass  # What the record is relative to was there before.
            case "fsync_folder", path:
                folder = self._at(path)
                assert isinstance(folder, Folder)
                folder.sync()
            case "mkdir", path:
                self._change(path, Folder())
            case (("unlink" | "rmdir"), path):
                self._change(path, None)
            case "replace", source, target:
                one, other = PurePosixPath(source), PurePosixPath(target)
                assert one.parent == other.parent, "a name is moved within its folder alone"
                folder = self._at(str(one.parent))
                assert isinstance(folder, Folder)
                folder.change({one.name: None, other.name: folder.names[one.name]})
            case "announced", step:
                self.announced = max(self.announced, step)
            case ("done",):
                self.done = True
            case _:
                raise AssertionError(f"no such operation: {operation}")

    def _at(self, path: str) -> File | Folder:
        node: File | Folder = self.root
        for name in PurePosixPath(path).parts:
            assert isinstance(node, Folder)
            node = node.names[name]
        return node

    def _change(self, path: str, node: File | Folder | None) -> None:
        whole = PurePosixPath(path)
        folder = self._at(str(whole.parent))
        assert isinstance(folder, Folder)
        folder.change({whole.name: node})

    def as_it_is(self) -> Tree:
        """Return what a process sees, and what is left where it alone dies."""
        return _tree(self.root, lambda folder: folder.names, lambda file: file.content)

    def after_a_cut(self, seed: str) -> Iterator[Tree]:
        """Yield what may be left where the power is cut now: every state, or MOST of them that are drawn by `seed`."""
        doubt = self._doubt()
        drawn = _drawn(doubt.choices, random.Random(seed)) if self.is_drawn() else itertools.product(*doubt.choices)
        for choice in drawn:
            yield self._left(doubt, choice)

    def is_drawn(self) -> bool:
        """Whether a cut now may leave so many states that `after_a_cut` yields only a part of them."""
        return math.prod(len(options) for options in self._doubt().choices) > MOST

    def corners(self) -> Iterator[Tree]:
        """Yield what a cut leaves where all is there, where only what was synced is, and where one thing more is."""
        doubt = self._doubt()
        written = [_fate(options, _WRITTEN, is_there=True) for options in doubt.choices]
        synced = [_fate(options, _SYNCED, is_there=False) for options in doubt.choices]
        yield self._left(doubt, written)
        yield self._left(doubt, synced)
        for at, only in enumerate(written):
            yield self._left(doubt, [*synced[:at], only, *synced[at + 1 :]])

    def _left(self, doubt: "_Doubt", choice: Sequence[Any]) -> Tree:
        chosen = iter(choice)
        names = {folder: folder.after([one for one in folder.changes if next(chosen)]) for folder in doubt.folders}
        held = {file: next(chosen) for file in doubt.files}
        return _tree(
            self.root,
            lambda folder: names.get(folder, folder.durable),
            lambda file: held.get(file, file.durable),
        )

    def _doubt(self) -> "_Doubt":
        folders, dirty = self._in_doubt()
        choices = [*(list(_IS_THERE) for one in folders for _ in one.changes), *(file.fates() for file in dirty)]
        return _Doubt(folders, dirty, choices)

    def _in_doubt(self) -> tuple[list[Folder], list[File]]:
        """Return the folders with changes and the files with bytes that are not durable, wherever a name may lead."""
        folders, dirty, seen, unvisited = [], [], set(), [self.root]
        while unvisited:
            folder = unvisited.pop()
            if folder.changes:
                folders.append(folder)
            later = [node for change in folder.changes for node in change.values() if node is not None]
            for node in (*folder.durable.values(), *later):
                if id(node) in seen:
                    continue
                seen.add(id(node))
                if isinstance(node, Folder):
                    unvisited.append(node)
                elif node.content != node.durable:
                    dirty.append(node)
        return folders, dirty


@dataclass(frozen=True)
class _Doubt:
    """What is not durable, and what may become of it: of each change of a folder, and of each file's bytes."""

    folders: list[Folder]
    files: list[File]
    choices: list[list[Any]]


def _fate(options: Sequence[Any], at: int, *, is_there: bool) -> Any:
    """Return the fate of this number where it is of a file, and where it is of a change of a name, `is_there`."""
    return is_there if options == _IS_THERE else options[min(at, len(options) - 1)]


def _drawn(choices: Sequence[Sequence[Any]], chance: random.Random) -> Iterator[Sequence[Any]]:
    """Yield MOST choices: those where all that can be alike is alike, and the rest at random."""
    ways = itertools.product((True, False), range(4))
    alike = [[_fate(options, at, is_there=is_there) for options in choices] for is_there, at in ways]
    yield from alike
    for _ in range(MOST - len(alike)):
        yield [chance.choice(options) for options in choices]


def _tree(
    folder: Folder,
    names_of: "Callable[[Folder], dict[str, File | Folder]]",
    content_of: Callable[[File], bytes],
    prefix: str = "",
) -> Tree:
    tree: Tree = {}
    for name, node in names_of(folder).items():
        if isinstance(node, Folder):
            tree[prefix + name] = None
            tree |= _tree(node, names_of, content_of, f"{prefix}{name}/")
        else:
            tree[prefix + name] = content_of(node)
    return tree


def read_record(path: Path) -> list[Operation]:
    """Return the operations that a `Recording` has put on record."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_tree(tree: Tree, folder: Path) -> None:
    """Make the tree in an empty folder."""
    for name, content in sorted(tree.items()):
        if content is None:
            (folder / name).mkdir()
        else:
            (folder / name).write_bytes(content)
