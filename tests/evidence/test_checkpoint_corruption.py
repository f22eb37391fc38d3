"""Whatever happens to the files of a checkpoint, it is refused by name and nothing is loaded."""

import functools
import hashlib
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from pretrain.errors import IntegrityError
from pretrain.evidence import canonical, checkpoint
from pretrain.evidence.checkpoint_record import parse_record
from tests.evidence.checkpoint_samples import like, save, small_state

SHARD, RECORD = "shard_00000.safetensors", "checkpoint.json"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A small checkpoint; no descriptor may stay open, whatever was refused."""
    save(tmp_path / "c")
    before = os.listdir("/proc/self/fd")
    yield tmp_path / "c"
    assert os.listdir("/proc/self/fd") == before


def refuse(folder: Path, name: str) -> None:
    """Verifying, loading and describing all name the file, and loading changes nothing."""
    destination = like(small_state(), torch.ones_like)
    for read in (
        checkpoint.verify_checkpoint,
        checkpoint.describe,
        lambda path: checkpoint.load_checkpoint(path, destination),
    ):
        with pytest.raises(IntegrityError, match=name):
            read(folder)
    assert all(bool((tensor == 1).all()) for tensor in destination.values())


def flips(sound: bytes) -> Iterator[tuple[int, int, bytearray]]:
    for position, bit in itertools.product(range(len(sound)), range(8)):
        torn = bytearray(sound)
        torn[position] ^= 1 << bit
        yield position, bit, torn


def refused(read: Callable[[], object], name: str) -> bool:
    try:
        read()
    except IntegrityError as error:
        return name in str(error)
    return False


def test_s26_every_flipped_bit_of_a_shard_is_refused(folder: Path) -> None:
    missed = []
    with (folder / SHARD).open("r+b", buffering=0) as file:
        sound = file.read()
        for position, bit, torn in flips(sound):
            file.seek(position)
            file.write(torn[position : position + 1])
            if not refused(lambda: checkpoint.verify_checkpoint(folder), SHARD):
                missed.append((position, bit))
            file.seek(position)
            file.write(sound[position : position + 1])
    assert missed == []
    checkpoint.verify_checkpoint(folder)


def test_every_flipped_bit_of_a_record_is_refused(folder: Path) -> None:
    sound = (folder / RECORD).read_bytes()
    missed = []
    for position, bit, torn in flips(sound):
        if not refused(functools.partial(parse_record, bytes(torn), "here"), "here: "):
            missed.append((position, bit))
    assert missed == []


@pytest.mark.parametrize("name", [SHARD, RECORD])
def test_s26_a_flipped_bit_is_never_loaded(folder: Path, name: str) -> None:
    path = folder / name
    sound = path.read_bytes()
    destination = like(small_state(), torch.ones_like)
    for position in range(0, len(sound), 7):
        torn = bytearray(sound)
        torn[position] ^= 1 << (position % 8)
        path.write_bytes(torn)
        with pytest.raises(IntegrityError, match=name):
            checkpoint.load_checkpoint(folder, destination)
    assert all(bool((tensor == 1).all()) for tensor in destination.values())


@pytest.mark.parametrize("name", [SHARD, RECORD])
@pytest.mark.parametrize(
    "tear",
    [
        lambda data: b"",
        lambda data: data[:1],
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: data + b"\n",
        lambda data: b" " + data,
        lambda data: bytes(len(data)),
        lambda data: data[:100] + bytes(64) + data[164:],
        lambda data: data + data,
    ],
    ids=["empty", "1", "half", "-1", "+nul", "+newline", "space+", "zeros", "hole", "twice"],
)
def test_a_torn_file_is_refused(folder: Path, name: str, tear: Callable[[bytes], bytes]) -> None:
    path = folder / name
    path.write_bytes(tear(path.read_bytes()))
    refuse(folder, name)


def _gone(path: Path) -> None:
    path.unlink()


def _link(path: Path) -> None:
    path.rename(path.parent.parent / path.name)
    path.symlink_to(path.parent.parent / path.name)


def _dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent / "nowhere")


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _renamed(path: Path) -> None:
    path.rename(path.with_name("shard_00001.safetensors"))


@pytest.mark.parametrize("name", [SHARD, RECORD])
@pytest.mark.parametrize("replace", [_gone, _link, _dangling, _folder, _fifo, _renamed])
def test_a_file_that_is_gone_or_something_else_is_refused(
    folder: Path, name: str, replace: Callable[[Path], None]
) -> None:
    replace(folder / name)
    refuse(folder, name)


@pytest.mark.parametrize("kind", ["file", "hidden", "temporary", "shard", "folder", "link"])
def test_what_does_not_belong_there_is_refused(folder: Path, kind: str) -> None:
    names = {"hidden": ".x", "temporary": ".tmp-1-1-shard_00000.safetensors", "shard": "shard_00001.safetensors"}
    extra = folder / names.get(kind, "extra")
    if kind == "folder":
        extra.mkdir()
    elif kind == "link":
        extra.symlink_to(folder / SHARD)
    else:
        extra.write_bytes((folder / SHARD).read_bytes())
    refuse(folder, extra.name)


def test_s27_a_symlink_to_a_checkpoint_is_refused(folder: Path) -> None:
    link = folder.with_name("link")
    link.symlink_to(folder)
    refuse(link, "symlink")
    with pytest.raises(IntegrityError, match="symlink"):
        checkpoint.remove_checkpoint(link)
    checkpoint.verify_checkpoint(folder)


@pytest.mark.parametrize("name", [SHARD, RECORD])
def test_the_file_of_another_step_is_refused(tmp_path: Path, name: str) -> None:
    one, two = checkpoint.folder_of(tmp_path, 100), checkpoint.folder_of(tmp_path, 200)
    save(one)
    save(two, small_state() | {"model.w": torch.ones(2, 3)}, step=200)
    first, second = (one / name).read_bytes(), (two / name).read_bytes()
    assert len(first) == len(second)
    (one / name).write_bytes(second)
    (two / name).write_bytes(first)
    refuse(one, "step_00000100")
    refuse(two, "step_00000200")


def reseal(folder: Path, **changes: object) -> None:
    """What one does who rewrites a file and the digests with it: only a hash kept elsewhere finds that out."""
    record = canonical.parse((folder / RECORD).read_bytes(), "here") | changes
    shard = (folder / SHARD).read_bytes()
    record["files"] = [{"path": SHARD, "bytes": len(shard), "sha256": hashlib.sha256(shard).hexdigest()}]
    (folder / RECORD).write_bytes(canonical.encode(canonical.seal(record)))


def test_a_sealed_record_over_something_else_than_a_shard_is_refused(folder: Path) -> None:
    (folder / SHARD).write_bytes(b"PK\3\4 a pickle, perhaps")
    reseal(folder)
    refuse(folder, f"{SHARD}: expected a header")


def test_tensors_other_than_the_content_are_not_described(folder: Path) -> None:
    reseal(folder, content_sha256="0" * 64)
    with pytest.raises(IntegrityError, match="content_sha256"):
        checkpoint.describe(folder)


def test_a_folder_without_a_record_is_no_checkpoint(folder: Path) -> None:
    (folder / RECORD).unlink()
    refuse(folder, r"checkpoint\.json: missing")
    refuse(folder.with_name("nowhere"), r"checkpoint\.json: missing")


def test_a_file_that_changes_while_it_is_loaded_is_not_followed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was hashed is what is read: another file under the same name comes too late."""
    from pretrain.evidence import shard_reader

    matched = shard_reader.check_matches

    def swap(*arguments: object) -> None:
        other = folder.with_name("other")
        other.write_bytes(bytes((folder / SHARD).stat().st_size))
        other.replace(folder / SHARD)
        matched(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(shard_reader, "check_matches", swap)
    destination = like(small_state())
    checkpoint.load_checkpoint(folder, destination)
    assert all(torch.equal(destination[name], tensor) for name, tensor in small_state().items())


def test_a_file_that_is_written_to_while_it_is_loaded_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the hash the one file may get other bytes, and its own back before anybody looks again."""
    from pretrain.evidence import shard_reader

    read = shard_reader.read

    def write_around(*arguments: object) -> None:
        sound, times = (folder / SHARD).read_bytes(), (folder / SHARD).stat()
        for data in (sound[:-1] + bytes([sound[-1] ^ 1]), sound):
            with (folder / SHARD).open("r+b") as writer:
                writer.write(data)
            if data != sound:
                read(*arguments)  # type: ignore[arg-type]
        os.utime(folder / SHARD, ns=(times.st_atime_ns, times.st_mtime_ns))

    monkeypatch.setattr(shard_reader, "read", write_around)
    with pytest.raises(IntegrityError, match=r"shard_00000\.safetensors: it was changed while it was read"):
        checkpoint.load_checkpoint(folder, like(small_state()))
    checkpoint.verify_checkpoint(folder)
