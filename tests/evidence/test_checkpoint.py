"""A checkpoint comes back bit for bit, and equal state makes equal bytes."""

import hashlib
import json
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from pretrain.errors import DivergedError, IntegrityError
from pretrain.evidence import checkpoint
from pretrain.evidence.metrics import Cursor
from tests.evidence.checkpoint_samples import DTYPES, SCALARS, contents, like, same_bits, save, small_state, tensor_of

SHAPES = [(), (1,), (7,), (0,), (3, 0, 2), (2, 3), (5, 1, 7), (1, 1, 1, 1, 3)]


def every_kind() -> dict[str, torch.Tensor]:
    return {
        f"{str(dtype)[6:]}.{'x'.join(map(str, shape)) or 'scalar'}": tensor_of(dtype, shape, seed)
        for dtype in DTYPES
        for seed, shape in enumerate(SHAPES)
    }


def test_every_dtype_and_shape_comes_back(tmp_path: Path) -> None:
    state = every_kind()
    save(tmp_path / "c", state)
    destination = like(state)
    checkpoint.load_checkpoint(tmp_path / "c", destination)
    assert all(same_bits(state[name], destination[name]) for name in state)


def test_the_safetensors_package_reads_the_same(tmp_path: Path) -> None:
    state = every_kind()
    save(tmp_path / "c", state)
    found = load_file(tmp_path / "c" / "shard_00000.safetensors")
    assert found.keys() == state.keys()
    assert all(same_bits(state[name], found[name]) for name in state)


STRIDED: dict[str, Callable[[], torch.Tensor]] = {
    "transposed": lambda: tensor_of(torch.float32, (3, 4)).T,
    "every other": lambda: tensor_of(torch.int16, (9,))[::2],
    "expanded": lambda: tensor_of(torch.float32, (3, 1)).expand(3, 5),
    "middle": lambda: tensor_of(torch.bfloat16, (4, 6))[1:3, 2:5],
    "channels last": lambda: tensor_of(torch.float32, (2, 3, 4, 5)).to(memory_format=torch.channels_last),
    "offset": lambda: tensor_of(torch.uint8, (9,))[1:],
    "negated view": lambda: torch.complex(*tensor_of(torch.float32, (2, 5)).unbind()).conj().imag,
    "parameter": lambda: torch.nn.Parameter(tensor_of(torch.float32, (2, 2))),
}


@pytest.mark.parametrize("kind", STRIDED)
def test_any_strides_save_as_their_values(tmp_path: Path, kind: str) -> None:
    tensor = STRIDED[kind]()
    save(tmp_path / "strided", {"t": tensor})
    save(tmp_path / "plain", {"t": tensor.detach().clone(memory_format=torch.contiguous_format)})
    assert contents(tmp_path / "strided") == contents(tmp_path / "plain")


@pytest.mark.parametrize("kind", sorted(set(STRIDED) - {"expanded", "negated view"}))
def test_loading_fills_any_strides_in_place(tmp_path: Path, kind: str) -> None:
    state = {"t": STRIDED[kind]()}
    save(tmp_path / "c", state)
    destination = STRIDED[kind]()
    address = destination.data_ptr()
    with torch.no_grad():
        destination.zero_()
    checkpoint.load_checkpoint(tmp_path / "c", {"t": destination})
    assert same_bits(state["t"], destination)
    assert destination.data_ptr() == address


def test_a_tensor_larger_than_the_blocks_comes_back(tmp_path: Path) -> None:
    state = {"wide": tensor_of(torch.float32, (3, 700_001)), "long": tensor_of(torch.uint8, ((1 << 20) + 1,))}
    save(tmp_path / "c", state)
    straight, strided = like(state), {"wide": torch.zeros(700_001, 3).T, "long": torch.zeros_like(state["long"])}
    for destination in (straight, strided):
        checkpoint.load_checkpoint(tmp_path / "c", destination)
        assert all(same_bits(state[name], destination[name]) for name in state)
    rows = {row["name"]: row["sha256"] for row in checkpoint.describe(tmp_path / "c")["tensors"]}
    assert rows == {name: hashlib.sha256(t.numpy().tobytes()).hexdigest() for name, t in state.items()}


def test_equal_state_makes_equal_bytes(tmp_path: Path) -> None:
    first = save(tmp_path / "one", every_kind(), layout={"a": 1, "b": 2})
    backwards = dict(reversed(every_kind().items()))
    scalars = {name: SCALARS[name] for name in reversed(SCALARS)}
    (tmp_path / "deep").mkdir()
    second = save(tmp_path / "deep" / "two", backwards, layout={"b": 2, "a": 1}, scalars=scalars)
    assert first == second
    assert contents(tmp_path / "one") == contents(tmp_path / "deep" / "two")


@pytest.mark.parametrize(
    "change",
    [
        {"step": 101},
        {"batch": 103},
        {"identity_sha256": "1b" * 32},
        {"layout": {"ranks": 2}},
        {"metrics": Cursor(5, 200, "2b" * 32)},
        {"scalars": SCALARS | {"guard": {"seen": 1}}},
        {"tensors": small_state() | {"rng.cpu": torch.zeros(5, dtype=torch.uint8)}},
        {"tensors": small_state() | {"optimizer.w.step": torch.tensor([7.0])}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_another_state_makes_another_name(tmp_path: Path, change: dict[str, Any]) -> None:
    assert save(tmp_path / "one").record_sha256 != save(tmp_path / "two", **change).record_sha256


def test_negative_zero_and_a_changed_sign_are_not_lost(tmp_path: Path) -> None:
    save(tmp_path / "one", {"t": torch.tensor([0.0])})
    save(tmp_path / "two", {"t": torch.tensor([-0.0])})
    assert checkpoint.compare(tmp_path / "one", tmp_path / "two").changed == ("t",)


def test_the_record_has_the_fields_of_the_format(tmp_path: Path) -> None:
    saved = save(tmp_path / "c")
    text = (tmp_path / "c" / "checkpoint.json").read_bytes()
    record = json.loads(text)
    shard = (tmp_path / "c" / "shard_00000.safetensors").read_bytes()
    sha256 = {name: hashlib.sha256(t.numpy().tobytes()).hexdigest() for name, t in small_state().items()}
    lines = (
        f"model.w F32 [2,3] {sha256['model.w']}\n"
        f"optimizer.w.step F32 [] {sha256['optimizer.w.step']}\n"
        f"rng.cpu U8 [5] {sha256['rng.cpu']}\n"
    )
    digest = record.pop("self_sha256")
    assert record == {
        "schema": 1,
        "step": 100,
        "batch": 102,
        "identity_sha256": "1a" * 32,
        "files": [
            {
                "path": "shard_00000.safetensors",
                "bytes": len(shard),
                "sha256": hashlib.sha256(shard).hexdigest(),
            }
        ],
        "content_sha256": hashlib.sha256(lines.encode()).hexdigest(),
        "layout": {},
        "metrics": {"lines": 4, "bytes": 200, "sha256": "2b" * 32},
        "scalars": SCALARS,
    }
    plain = json.dumps(record, sort_keys=True, separators=(",", ":")) + "\n"
    assert digest == hashlib.sha256(plain.encode()).hexdigest()
    assert text.decode() == json.dumps(record | {"self_sha256": digest}, sort_keys=True, separators=(",", ":")) + "\n"
    assert saved.record_sha256 == hashlib.sha256(text).hexdigest()
    assert saved.bytes == len(text) + len(shard)
    assert sorted(os.listdir(tmp_path / "c")) == ["checkpoint.json", "shard_00000.safetensors"]


def test_reading_verifying_and_loading_return_the_record(tmp_path: Path) -> None:
    saved = save(checkpoint.folder_of(tmp_path, 100))
    folder = tmp_path / "checkpoints" / "step_00000100"
    record = checkpoint.read_record(folder)
    assert record == checkpoint.verify_checkpoint(folder) == checkpoint.load_checkpoint(folder, like(small_state()))
    assert (record.record_sha256, record.bytes, record.step) == (saved.record_sha256, saved.bytes, 100)
    assert (record.batch, record.metrics, record.scalars) == (102, Cursor(4, 200, "2b" * 32), SCALARS)


def test_saving_and_loading_draw_no_random_number_and_leave_no_thread_or_descriptor(tmp_path: Path) -> None:
    state = {"t": tensor_of(torch.float32, (1 << 19,))}
    save(tmp_path / "warm", state)
    before = (torch.get_rng_state(), threading.active_count(), os.listdir("/proc/self/fd"))
    save(tmp_path / "c", state)
    checkpoint.load_checkpoint(tmp_path / "c", like(state))
    checkpoint.describe(tmp_path / "c")
    after = (torch.get_rng_state(), threading.active_count(), os.listdir("/proc/self/fd"))
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_device_saves_the_same_bytes_and_loads_them_back(tmp_path: Path) -> None:
    state = every_kind() | {"wide": tensor_of(torch.bfloat16, (3, 7_000_001))}
    there = {name: tensor.cuda() for name, tensor in state.items()}
    save(tmp_path / "cpu", state)
    save(tmp_path / "cuda", there)
    assert contents(tmp_path / "cpu") == contents(tmp_path / "cuda")
    destination = like(there)
    checkpoint.load_checkpoint(tmp_path / "cpu", destination)
    assert all(same_bits(state[name], destination[name].cpu()) for name in state)
    there["wide"][2, -1] = float("inf")
    with pytest.raises(DivergedError, match="wide"):
        save(tmp_path / "no", there)


# --- what is refused -----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype.is_floating_point], ids=str)
def test_a_state_that_is_not_finite_is_refused_before_anything_is_written(
    tmp_path: Path, dtype: torch.dtype, value: float
) -> None:
    state = small_state() | {"model.bad": torch.zeros(40, dtype=dtype), "model.ok": torch.ones(3, dtype=dtype)}
    state["model.bad"][-1] = value
    state["model.worse"] = torch.full((2,), value, dtype=dtype)
    with pytest.raises(DivergedError, match=r"^model\.bad is not finite \(2 of 6"):
        save(tmp_path / "c", state)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("tensors", "names"),
    [
        ({"model.w": torch.zeros(2, 3)}, ["optimizer.w.step: only in", "rng.cpu: only in"]),
        (small_state() | {"new": torch.zeros(1)}, ["new: not in the checkpoint"]),
        (small_state() | {"model.w": torch.zeros(3, 2)}, [r"model.w: expected F32 \[3, 2\], found F32 \[2, 3\]"]),
        (small_state() | {"model.w": torch.zeros(6)}, ["model.w: expected"]),
        (small_state() | {"rng.cpu": torch.zeros(5, dtype=torch.int8)}, [r"rng.cpu: expected I8 \[5\], found U8"]),
        (small_state() | {"optimizer.w.step": torch.zeros(1)}, [r"step: expected F32 \[1\], found F32 \[\]"]),
        ({}, ["model.w: only in", "rng.cpu: only in"]),
    ],
)
def test_another_state_is_refused_by_name_and_stays_as_it_is(
    tmp_path: Path, tensors: dict[str, torch.Tensor], names: list[str]
) -> None:
    save(tmp_path / "c")
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    for name in names:
        with pytest.raises(IntegrityError, match=name):
            checkpoint.load_checkpoint(tmp_path / "c", tensors)
    assert all(same_bits(before[name], tensors[name]) for name in tensors)


def test_s11_names_with_a_prefix_of_torch_compile_are_refused_and_listed(tmp_path: Path) -> None:
    save(tmp_path / "c", {name.replace(".w", "._orig_mod.w"): tensor for name, tensor in small_state().items()})
    destination = like(small_state())
    with pytest.raises(IntegrityError) as refused:
        checkpoint.load_checkpoint(tmp_path / "c", destination)
    assert all(text in str(refused.value) for text in ("model.w: not in", "model._orig_mod.w: only in"))
    assert not any(tensor.any() for tensor in destination.values())


GENERATORS = {name: tensor_of(torch.uint8, (5,), seed) for seed, name in enumerate(("rng.cpu", "rng.cuda.0"))}


@pytest.mark.parametrize("saved", [("rng.cpu",), ("rng.cpu", "rng.cuda.0"), ("rng.cpu", "rng.cuda.0", "rng.cuda.1")])
@pytest.mark.parametrize("here", [("rng.cpu",), ("rng.cpu", "rng.cuda.0")])
def test_the_generator_of_a_gpu_may_be_on_one_side_alone(
    tmp_path: Path, saved: tuple[str, ...], here: tuple[str, ...]
) -> None:
    states = {**GENERATORS, "rng.cuda.1": tensor_of(torch.uint8, (3,), 7)}
    save(tmp_path / "c", {"model.w": torch.ones(2)} | {name: states[name] for name in saved})
    destination, found = {"model.w": torch.zeros(2)}, {name: torch.zeros(5, dtype=torch.uint8) for name in here}
    checkpoint.load_checkpoint(tmp_path / "c", destination, found)
    assert torch.equal(destination["model.w"], torch.ones(2))
    assert set(found) == set(saved)
    assert all(same_bits(found[name], states[name]) for name in saved)


@pytest.mark.parametrize(
    ("saved", "here", "message"),
    [
        ({"rng.cuda.0": 5}, {"rng.cpu": 5}, "rng.cpu: not in the checkpoint"),
        ({"rng.cpu": 5, "rng.tpu.0": 5}, {"rng.cpu": 5}, "rng.tpu.0: only in the checkpoint"),
        ({"rng.cpu": 5, "rng.cuda.0": 5}, {"rng.cpu": 5, "rng.cuda.0": 6}, "rng.cuda.0: expected U8"),
        ({"rng.cpu": 5}, {"rng.cpu": 6}, "rng.cpu: expected U8"),
    ],
)
def test_s8_other_generators_are_refused_and_nothing_changes(
    tmp_path: Path, saved: dict[str, int], here: dict[str, int], message: str
) -> None:
    save(tmp_path / "c", {name: torch.ones(size, dtype=torch.uint8) for name, size in (saved | {"model.w": 2}).items()})
    found = {name: torch.zeros(size, dtype=torch.uint8) for name, size in here.items()}
    destination = {"model.w": torch.zeros(2, dtype=torch.uint8)}
    with pytest.raises(IntegrityError, match=message):
        checkpoint.load_checkpoint(tmp_path / "c", destination, found)
    assert not any(tensor.any() for tensor in (*found.values(), *destination.values()))
    assert set(found) == set(here)


@pytest.mark.parametrize(
    ("name", "tensor", "error"),
    [
        ("number", 5, TypeError),
        ("rng.numpy", np.random.default_rng(1).bit_generator.state, TypeError),
        ("complex", torch.zeros(1, dtype=torch.complex64), TypeError),
        ("sparse", torch.eye(3).to_sparse(), TypeError),
        ("meta", torch.empty(3, device="meta"), TypeError),
        ("with space", torch.zeros(1), IntegrityError),
        ("two\nlines", torch.zeros(1), IntegrityError),
        ("__metadata__", torch.zeros(1), IntegrityError),
        ("", torch.zeros(1), IntegrityError),
    ],
    ids=lambda value: repr(value) if isinstance(value, str) else "",
)
def test_s8_what_a_checkpoint_cannot_hold_is_refused(
    tmp_path: Path, name: str, tensor: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match=re.escape(repr(name)[1:-1] or "no tensor name")):
        save(tmp_path / "c", {"ok": torch.zeros(1), name: tensor})
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one tensor or more"):
        save(tmp_path / "c", {})
    assert list(tmp_path.iterdir()) == []


# --- folders -------------------------------------------------------------------------------------------


def test_listing_is_numeric_and_leaves_out_what_is_no_checkpoint(tmp_path: Path) -> None:
    for step in (1000, 99, 900, 123_456_789):
        save(checkpoint.folder_of(tmp_path, step), step=step)
    folder = tmp_path / "checkpoints"
    (folder / "step_00002000").mkdir()
    (folder / "step_00002000" / "shard_00000.safetensors").write_bytes(b"torn")
    (folder / "step_00003000").symlink_to(folder / "step_00001000")
    (folder / "step_5").mkdir()
    (folder / "step_000000007").mkdir()
    for name in ("step_5", "step_000000007"):
        (folder / name / "checkpoint.json").write_bytes(b"{}")
    expected = [(step, checkpoint.folder_of(tmp_path, step)) for step in (99, 900, 1000, 123_456_789)]
    assert checkpoint.list_checkpoints(tmp_path) == expected
    assert checkpoint.list_checkpoints(tmp_path / "elsewhere") == []


def test_a_step_folder_with_the_record_of_another_step_is_refused(tmp_path: Path) -> None:
    save(checkpoint.folder_of(tmp_path, 100))
    (tmp_path / "checkpoints" / "step_00000100").rename(tmp_path / "checkpoints" / "step_00000200")
    with pytest.raises(IntegrityError, match="expected the record of step 200, found that of step 100"):
        checkpoint.load_checkpoint(tmp_path / "checkpoints" / "step_00000200", like(small_state()))


def test_a_second_save_into_a_checkpoint_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    save(tmp_path / "c")
    before = contents(tmp_path / "c")
    with pytest.raises(IntegrityError, match="already"):
        save(tmp_path / "c", batch=103)
    assert contents(tmp_path / "c") == before


def test_a_save_clears_what_a_killed_one_left_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    folder.mkdir()
    (folder / "shard_00000.safetensors").write_bytes(b"torn")
    (folder / "shard_00001.safetensors").write_bytes(b"of a rank that is no more")
    (folder / ".tmp-12-3-checkpoint.json").write_bytes(b"{")
    save(folder)
    checkpoint.verify_checkpoint(folder)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("irreplaceable")
    with pytest.raises(IntegrityError, match=r"thesis\.txt"):
        save(tmp_path / "mine")
    assert contents(tmp_path / "mine") == {"thesis.txt": b"irreplaceable"}


def test_removing_takes_the_record_first_and_is_done_twice_without_harm(tmp_path: Path) -> None:
    save(tmp_path / "c")
    (tmp_path / "c" / "checkpoint.json").unlink()
    checkpoint.remove_checkpoint(tmp_path / "c")
    checkpoint.remove_checkpoint(tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


# --- inspection ----------------------------------------------------------------------------------------


def test_describing_lists_every_tensor(tmp_path: Path) -> None:
    saved = save(tmp_path / "c")
    record = checkpoint.read_record(tmp_path / "c")
    assert checkpoint.describe(tmp_path / "c") == {
        "step": 100,
        "record_sha256": saved.record_sha256,
        "content_sha256": record.content_sha256,
        "optimizer_bytes": 4,
        "tensors": [
            {
                "name": name,
                "dtype": dtype,
                "shape": shape,
                "sha256": hashlib.sha256(small_state()[name].numpy().tobytes()).hexdigest(),
            }
            for name, dtype, shape in (
                ("model.w", "F32", [2, 3]),
                ("optimizer.w.step", "F32", []),
                ("rng.cpu", "U8", [5]),
            )
        ],
    }


def test_comparing_names_what_differs(tmp_path: Path) -> None:
    state = small_state()
    save(tmp_path / "one")
    state["model.w"][1, 2] += 1
    state["extra"] = state.pop("optimizer.w.step")
    save(tmp_path / "two", state)
    difference = checkpoint.compare(tmp_path / "one", tmp_path / "two")
    assert difference == checkpoint.Difference(("extra",), ("optimizer.w.step",), ("model.w",))
    assert difference.names == ("extra", "model.w", "optimizer.w.step")
    assert checkpoint.compare(tmp_path / "two", tmp_path / "two").names == ()
