"""A run that goes on on another device: what its checkpoints hold of generators that this device has not, or lacks."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pretrain.attempt import replay_incident, start_attempt
from pretrain.attempt.origin import find_origin
from pretrain.attempt.prepare import restore
from pretrain.build import BuiltRun, build_data, build_run
from pretrain.errors import ConfigError
from pretrain.evidence import checkpoint
from pretrain.loop import LoopParts
from pretrain.machine import environment
from pretrain.machine.signals import StopRequest
from tests.evidence.checkpoint_samples import save
from tests.loop.lineages import end_of
from tests.loop.probes import newest_attempt
from tests.loop.states import States
from tests.tiny import Recorder, go_on, tiny, train

CPU, GPU = torch.device("cpu"), "NVIDIA H200"
LEFT = torch.arange(16, dtype=torch.uint8)
# What a GPU run holds of its generator, before and after the one that is kept.
EARLIER, LATER = LEFT + 100, LEFT + 200

pytestmark = pytest.mark.usefixtures("_faults")


@pytest.fixture
def _faults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRETRAIN_ALLOW_FAULTS", "1")


@pytest.fixture
def as_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """In here `training.device=cuda` is a device that calls itself an H200 and computes on the CPU."""
    real = environment.describe
    with monkeypatch.context() as patch:
        patch.setattr("pretrain.attempt.prepare.select_device", lambda name: CPU)
        patch.setattr(environment, "describe", lambda *given: {**real(*given), "device": GPU})
        yield patch


def gpu_run(folder: Path, patch: pytest.MonkeyPatch, *overrides: str, stop_after: int = 6) -> Path:
    """Leave a run that was stopped on that device; its checkpoints hold the generator of a GPU, as they would there."""
    stop = StopRequest()

    def begin(parts: LoopParts) -> None:
        parts.state.parked = {"rng.cuda.0": LEFT}

    with patch.context() as inner:
        watch = States(inner, begin=begin)
        config = tiny(folder, "text", "training.device=cuda", *overrides)
        assert start_attempt(config, stop, [watch, Recorder(stop, stop_after)]).verdict == "interrupted"
    patch.undo()
    return folder / "run"


def generators_of(folder: Path) -> dict[str, torch.Tensor]:
    """Return the states of generators that a checkpoint holds."""
    rows = checkpoint.describe(folder)["tensors"]
    size = next(row["shape"] for row in rows if row["name"] == "rng.cpu")
    found = {"rng.cpu": torch.zeros(size, dtype=torch.uint8)}
    others = {row["name"]: torch.zeros(row["shape"]) for row in rows if not row["name"].startswith("rng.")}
    checkpoint.load_checkpoint(folder, others, found)
    return found


def checkpoints(run: Path) -> dict[int, Path]:
    """Return the checkpoints of a run's newest attempt by step."""
    return dict(checkpoint.list_checkpoints(newest_attempt(run)))


def test_a_gpu_run_goes_on_on_the_cpu_and_says_so(tmp_path: Path, as_gpu: pytest.MonkeyPatch) -> None:
    run = gpu_run(tmp_path, as_gpu)
    with pytest.raises(ConfigError, match=f"--require-bit-exact: device was {GPU}, is cpu"):
        go_on(run, "training.device=cpu", require_bit_exact=True)
    assert go_on(run, "training.device=cpu").verdict == "done"
    manifest = json.loads((newest_attempt(run) / "manifest.json").read_bytes())
    assert (manifest["bit_exact"], manifest["reasons"]) == (False, [f"device was {GPU}, is cpu"])
    for folder in checkpoints(run).values():  # It stays parked where it was, for a return to the GPU.
        assert torch.equal(generators_of(folder)["rng.cuda.0"], LEFT)


@pytest.mark.parametrize("in_memory", [0, 1])
@pytest.mark.parametrize("at", [6, 9])
def test_a_rollback_crosses_the_change(tmp_path: Path, as_gpu: pytest.MonkeyPatch, in_memory: int, at: int) -> None:
    """To a checkpoint of the attempt before, or to one of its own; killed in between or not, to the same bytes."""
    run = gpu_run(tmp_path, as_gpu, f"spikes.targets_in_memory={in_memory}", f"faults.inject=[nan_weight@{at}]")
    shutil.copytree(run, tmp_path / "untouched")
    assert go_on(tmp_path / "untouched", "training.device=cpu").verdict == "done"
    assert go_on(run, "training.device=cpu", stop_after=at - 3).verdict == "interrupted"
    assert go_on(run).verdict == "done"
    assert end_of(run) == end_of(tmp_path / "untouched")
    rows = [json.loads(line) for line in (newest_attempt(run) / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if row["event"] == "rolled_back"] == [4 if at == 6 else 8]
    assert torch.equal(generators_of(checkpoints(run)[12])["rng.cuda.0"], LEFT)


def test_an_incident_of_a_gpu_run_is_replayed_on_a_cpu(tmp_path: Path, as_gpu: pytest.MonkeyPatch) -> None:
    run = gpu_run(tmp_path, as_gpu, "faults.inject=[nan_grad@5]", "checkpoint.checkpoint_every_n_steps=2")
    path = run / "attempts/0001/incidents/incident_0001.json"
    with pytest.raises(ConfigError, match=r"training\.device: cuda was asked for.*use training\.device=cpu"):
        replay_incident(path)
    replayed = replay_incident(path, ["training.device=cpu"])
    assert replayed.step == 4
    assert set(replayed.experiments) >= {"same_batch", "other_batch"}


# --- coming to a GPU -----------------------------------------------------------------------------------


class Generator:
    """The generator of a GPU that is not there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.state = EARLIER
        monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: self.state.clone())
        monkeypatch.setattr(torch.cuda, "set_rng_state", self._set)

    def _set(self, state: torch.Tensor, device: Any) -> None:
        self.state = state.clone()


def on_a_gpu(folder: Path) -> BuiltRun:
    """Return the run as it is built on a GPU, by name alone: its tensors lie on the CPU."""
    config = tiny(folder)
    built = build_run(config, build_data(config), CPU)
    built.state.device = torch.device("cuda", 0)
    built.state.seeded = built.state.generators()
    return built


def test_s7_generators_are_bytes_on_the_cpu_whatever_device_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What puts every tensor of a checkpoint on the GPU would put these there too, and no generator takes them then."""
    Generator(monkeypatch)
    state = on_a_gpu(tmp_path).state
    folder = checkpoint.folder_of(tmp_path, 100)
    save(folder, state.tensors())
    given: list[torch.Tensor] = []
    monkeypatch.setattr(torch, "set_rng_state", given.append)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda found, device: given.append(found))
    found = state.generators()
    with torch.device("meta"):  # where a tensor goes of which nothing else is said
        checkpoint.load_checkpoint(folder, state.state_tensors(), found)
        state.restore_generators(found)
    assert [(one.device.type, one.dtype) for one in given] == [("cpu", torch.uint8)] * 2
    assert torch.equal(given[1], EARLIER)


def test_a_cpu_run_comes_to_a_gpu_whose_generator_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert train(tiny(tmp_path), stop_after=6).verdict == "interrupted"
    generator = Generator(monkeypatch)
    built = on_a_gpu(tmp_path)
    generator.state = LATER
    origin = find_origin(tmp_path / "run", 1, None)
    restore(built, origin)
    assert torch.equal(generator.state, EARLIER)
    assert origin.checkpoint is not None
    assert torch.equal(torch.get_rng_state(), generators_of(origin.checkpoint)["rng.cpu"])
    assert (built.state.step, built.state.parked) == (6, {})
    assert set(built.state.generators()) == {"rng.cpu", "rng.cuda.0"}


def test_a_return_to_the_gpu_finds_its_generator(tmp_path: Path, as_gpu: pytest.MonkeyPatch) -> None:
    run = gpu_run(tmp_path, as_gpu)
    assert go_on(run, "training.device=cpu", stop_after=3).verdict == "interrupted"
    with pytest.MonkeyPatch.context() as patch:
        generator = Generator(patch)
        built = on_a_gpu(tmp_path)
        restore(built, find_origin(run, 2, None))
        assert (built.state.step, built.state.parked) == (9, {})
        assert torch.equal(generator.state, LEFT)


def test_going_back_takes_the_parked_generator_along(tmp_path: Path) -> None:
    """From memory as from the disk: a copy in memory is of the same bytes."""
    config = tiny(tmp_path)
    state = build_run(config, build_data(config), CPU).state
    state.parked = {"rng.cuda.0": EARLIER}
    early = state.snapshot()
    state.parked = {"rng.cuda.0": LATER}
    late = state.snapshot(state.snapshot())
    state.go_back(early)
    assert torch.equal(state.tensors()["rng.cuda.0"], EARLIER)
    state.go_back(late)
    assert torch.equal(state.tensors()["rng.cuda.0"], LATER)
    state.parked = {}
    assert "rng.cuda.0" not in state.snapshot(late).tensors


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("task", ["text", "iq"])
@pytest.mark.parametrize("devices", [("cuda", "cpu", "cuda"), ("cpu", "cuda", "cpu")])
def test_a_run_changes_its_device_twice(tmp_path: Path, task: str, devices: tuple[str, str, str]) -> None:
    first, second, third = devices
    config = tiny(tmp_path, task, f"training.device={first}", "faults.inject=[nan_weight@6]")
    assert train(config, stop_after=6).verdict == "interrupted"
    run = tmp_path / "run"
    assert go_on(run, f"training.device={second}", stop_after=4).verdict == "interrupted"
    assert go_on(run, f"training.device={third}").verdict == "done"
    end_of(run)  # verifies
    manifest = json.loads((newest_attempt(run) / "manifest.json").read_bytes())
    assert manifest["bit_exact"] is False
    assert any(reason.startswith("device was ") for reason in manifest["reasons"])
    assert set(generators_of(checkpoints(run)[12])) == {"rng.cpu", "rng.cuda.0"}
