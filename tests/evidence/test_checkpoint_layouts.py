"""What one layout saved, every other loads, and the digest of the content does not know the layout."""

import errno
import functools
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from pretrain import syscalls
from pretrain.errors import DivergedError, IntegrityError, StorageError
from pretrain.evidence import checkpoint
from pretrain.evidence.safetensors_file import Chunk, ShardFile, encode_header
from pretrain.evidence.shards import gather, tensor_sha256
from tests.evidence.checkpoint_samples import contents, like, same_bits, save, tensor_of
from tests.evidence.ranks import run_ranks

Cut = Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]


def whole_state() -> dict[str, torch.Tensor]:
    return {
        "model.matrix": tensor_of(torch.float32, (6, 8)),
        "model.uneven": tensor_of(torch.bfloat16, (5, 3)),
        "model.cube": tensor_of(torch.int16, (4, 2, 6)),
        "model.few": tensor_of(torch.float32, (2,)),
        "model.empty": tensor_of(torch.float32, (0, 4)),
        "model.large": tensor_of(torch.float32, (40, 9_000)),
        "optimizer.step": torch.tensor(3.0),
        "rng.cpu": tensor_of(torch.uint8, (11,)),
    }


@functools.cache
def mesh_of(shape: tuple[int, ...]) -> DeviceMesh:
    """One mesh per shape and process: each makes process groups."""
    return init_device_mesh("cpu", shape)


def cut(
    tensors: dict[str, torch.Tensor], shape: tuple[int, ...], placements: list[Placement]
) -> dict[str, torch.Tensor]:
    """The model's matrices on a mesh of `shape`, the rest as every rank holds it."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        fits = name.startswith("model.") and (tensor.dim() > 1 or placements == [Shard(0)])
        found[name] = distribute_tensor(tensor, mesh_of(shape), placements, src_data_rank=None) if fits else tensor
    return found


FOUR: dict[str, Cut] = {
    "rows": lambda state: cut(state, (4,), [Shard(0)]),
    "boxes": lambda state: cut(state, (2, 2), [Shard(0), Shard(1)]),
    "copied rows": lambda state: cut(state, (2, 2), [Replicate(), Shard(0)]),
    "copies": lambda state: state,
    "boxes again": lambda state: cut(state, (2, 2), [Shard(0), Shard(1)]),
}


def columns(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return cut(state, (3,), [Shard(1)])


def local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def check_loads(folder: Path, layout: Cut) -> None:
    destination, expected = layout(like(whole_state())), layout(whole_state())
    checkpoint.load_checkpoint(folder, destination)
    differing = [name for name in expected if not same_bits(local(expected[name]), local(destination[name]))]
    assert differing == [], folder


def test_every_layout_loads_into_every_other(tmp_path: Path) -> None:
    save(tmp_path / "one", whole_state())

    def four(rank: int) -> None:
        for name, layout in FOUR.items():
            saved = save(tmp_path / name, layout(whole_state()))
            assert saved.record_sha256 == checkpoint.read_record(tmp_path / name).record_sha256
            check_loads(tmp_path / name, layout)
            check_loads(tmp_path / "one", layout)

    def three(rank: int) -> None:
        save(tmp_path / "columns", columns(whole_state()))
        for name in ("one", "columns", *FOUR):
            check_loads(tmp_path / name, columns)

    run_ranks(4, tmp_path / "four", four)
    run_ranks(3, tmp_path / "three", three)
    content = checkpoint.read_record(tmp_path / "one").content_sha256
    for name in ("columns", *FOUR):
        check_loads(tmp_path / name, lambda state: state)
        assert checkpoint.compare(tmp_path / name, tmp_path / "one").names == ()
        assert checkpoint.read_record(tmp_path / name).content_sha256 == content
        shards = sorted(set(os.listdir(tmp_path / name)) - {"checkpoint.json"})
        assert shards == [f"shard_{rank:05d}.safetensors" for rank in range(3 if name == "columns" else 4)]
    assert contents(tmp_path / "boxes") == contents(tmp_path / "boxes again")


class Full(syscalls.System):
    def write(self, fd: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_what_stops_one_rank_stops_all_of_them(tmp_path: Path) -> None:
    """A rank that stopped alone would leave the others waiting for it."""
    folder = tmp_path / "c"

    def body(rank: int) -> None:
        state = cut(whole_state(), (2,), [Shard(0)])
        if rank == 1:
            local(state["model.matrix"])[-1, -1] = float("nan")
        with pytest.raises(DivergedError, match=r"model\.matrix"):
            save(folder, state)
        assert not folder.exists()
        if rank == 1:
            local(state["model.matrix"])[-1, -1] = 0.0
            syscalls.system = Full()
        with pytest.raises(StorageError, match="No space"):
            save(folder, state)
        torch.distributed.barrier()
        assert not folder.exists()
        syscalls.system = syscalls.System()
        save(folder, state)
        destination = like(state)
        if rank == 0:
            destination["more"] = torch.zeros(1)
        with pytest.raises(IntegrityError, match="more: not in the checkpoint"):
            checkpoint.load_checkpoint(folder, destination)
        with pytest.raises(IntegrityError, match="already"):
            save(folder, state)

    run_ranks(2, tmp_path / "ranks", body)
    checkpoint.verify_checkpoint(folder)


# --- shard files that do not make up their tensors -----------------------------------------------------


def write_shards(folder: Path, *shards: list[Chunk]) -> list[ShardFile]:
    opened = []
    for number, chunks in enumerate(shards):
        header, ordered = encode_header(chunks)
        path = folder / f"{number}"
        path.write_bytes(header + b"".join(bytes([number + 1] * chunk.bytes) for chunk in ordered))
        opened.append(ShardFile.open(path))
    return opened


def box(offsets: tuple[int, ...], shape: tuple[int, ...], whole: tuple[int, ...], dtype: str = "U8") -> Chunk:
    return Chunk("t", dtype, shape, offsets, whole)


@pytest.mark.parametrize(
    ("boxes", "fault"),
    [
        ([box((0,), (2,), (4,))], "expected chunks that fill"),
        ([box((0,), (2,), (4,)), box((1,), (2,), (4,))], "expected chunks that fill"),
        ([box((0,), (3,), (4,)), box((2,), (2,), (4,))], "expected chunks that fill"),
        ([box((0, 0), (2, 1), (2, 2)), box((1, 0), (1, 2), (2, 2))], "expected chunks that fill"),
        ([box((0, 0), (2, 2), (2, 4)), box((0, 1), (2, 2), (2, 4))], "expected chunks that fill"),
        ([box((0,), (4,), (4,)), box((0,), (4,), (4,))], "expected chunks that fill"),
        ([box((), (), ()), box((), (), ())], "expected chunks that fill"),
        ([box((0,), (0,), (4,))], "expected chunks that fill"),
        ([box((0,), (2,), (4,)), box((2,), (2,), (5,))], "expected a part of"),
        ([box((0,), (2,), (4,)), box((2,), (2,), (4,), "I8")], "expected a part of"),
        ([box((0,), (2,), (4,)), box((0, 2), (1, 2), (1, 4))], "expected a part of"),
    ],
)
def test_chunks_that_overlap_or_leave_a_part_out_are_refused(tmp_path: Path, boxes: list[Chunk], fault: str) -> None:
    opened = write_shards(tmp_path, *([one] for one in boxes))
    with pytest.raises(IntegrityError, match=f"t: {fault}"):
        gather(opened)
    for file in opened:
        file.close()


def test_chunks_in_any_order_with_empty_ones_between_make_up_the_tensor(tmp_path: Path) -> None:
    boxes = [
        box((2, 0), (1, 3), (3, 3)),
        box((3, 0), (0, 3), (3, 3)),
        box((0, 0), (2, 1), (3, 3)),
        box((0, 1), (2, 2), (3, 3)),
    ]
    opened = write_shards(tmp_path, *([one] for one in boxes))
    tensor = gather(opened)["t"]
    assert len(tensor.chunks) == 3
    assert tensor_sha256(tensor) == hashlib.sha256(bytes([3, 4, 4, 3, 4, 4, 1, 1, 1])).hexdigest()
    for file in opened:
        file.close()
