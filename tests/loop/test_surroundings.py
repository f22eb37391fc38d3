"""What lies around a run: files that nothing else binds yet, the places it writes to, the switches of the machine."""

import json
import random
import shutil
from pathlib import Path

import pytest

from pretrain.attempt import start_attempt
from pretrain.errors import ConfigError, IntegrityError
from pretrain.machine.signals import StopRequest
from pretrain.telemetry.sink import Event
from tests.loop.lineages import end_of, tree
from tests.tiny import Recorder, go_on, resume_attempt, tiny, train


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stopped")
    assert train(tiny(folder), 6).verdict == "interrupted"
    return folder


@pytest.mark.parametrize("name", ["config.yaml", "environment.json"])
def test_a_flipped_bit_in_an_unfinished_attempt_is_refused(stopped: Path, tmp_path: Path, name: str):
    run = tmp_path / "run"
    shutil.copytree(stopped / "run", run)
    path = run / "attempts/0001" / name
    content = path.read_bytes()
    names = [8 * content.find(name) for name in (b"config_sha256", b"environment_sha256") if name in content]
    for bit in [*names, *random.Random(7).sample(range(8 * len(content)), 60)]:
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(IntegrityError, match=name):
            go_on(run)
    path.write_bytes(content)
    assert not (run / "attempts/0002").exists()
    assert go_on(run).verdict == "done"


def test_a_switch_of_the_arithmetic_is_told(stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = tmp_path / "run"
    shutil.copytree(stopped / "run", run)
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    with pytest.raises(ConfigError, match="MKL_CBWR"):
        go_on(run, require_bit_exact=True)
    assert go_on(run).verdict == "done"
    manifest = json.loads((run / "attempts/0002/manifest.json").read_text())
    assert manifest["bit_exact"] is False
    assert any("MKL_CBWR" in reason for reason in manifest["reasons"])


def test_settings_under_which_products_are_wrong_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMP_THREAD_LIMIT", "0")
    with pytest.raises(ConfigError, match=r"OMP_THREAD_LIMIT: 0 is less than training.threads, 1"):
        train(tiny(tmp_path))
    assert not (tmp_path / "run").exists()


def test_a_run_below_its_own_data_is_refused(tmp_path: Path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/a.txt").write_text("abc " * 500)
    override = f"data.train.letters.path={tmp_path / 'texts'}"
    with pytest.raises(ConfigError, match="would become data"):
        train(tiny(tmp_path, "text", override, run="texts/runs/a"))
    assert [path.name for path in (tmp_path / "texts").iterdir()] == ["a.txt"]


def test_a_csv_below_the_data_of_the_run_is_refused(tmp_path: Path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/a.txt").write_text("abc " * 500)
    overrides = (f"data.train.letters.path={tmp_path}/texts", f"telemetry.csv_log_path={tmp_path}/texts/log.csv")
    with pytest.raises(ConfigError, match=r"telemetry.csv_log_path: .* would become data"):
        train(tiny(tmp_path, "text", *overrides))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "override", ["telemetry.csv_log_path=%s/telemetry.csv", "telemetry.trackers={tensorboard: {folder: %s/tb}}"]
)
def test_what_is_written_beside_the_files_of_another_run_is_refused(stopped: Path, tmp_path: Path, override: str):
    other = tmp_path / "other"
    shutil.copytree(stopped / "run", other)
    before = tree(other)
    with pytest.raises(ConfigError, match="whose files are bound"):
        train(tiny(tmp_path, "text", override % (other / "attempts/0001")))
    assert tree(other) == before
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("gone", ["", "config.yaml", "environment.json", "manifest.json"])
@pytest.mark.parametrize("place", ["0001", "0001/checkpoints", "0001/a/b", "0002", "linked/run"])
def test_a_run_in_an_attempt_of_another_run_is_refused(stopped: Path, tmp_path: Path, place: str, gone: str):
    other = tmp_path / "other"
    shutil.copytree(stopped / "run", other)
    (other / "attempts/0001/manifest.json").write_text("{}")
    if gone:
        (other / "attempts/0001" / gone).unlink()
    (tmp_path / "linked").symlink_to(other / "attempts/0001")
    before = tree(other)
    run = tmp_path / place if place.startswith("linked") else other / "attempts" / place
    with pytest.raises(ConfigError, match=r"run\.dir: .*/other/attempts/.* whose files are bound"):
        train(tiny(tmp_path, "text", f"run.dir={run}"))
    assert tree(other) == before


def test_a_run_in_a_folder_of_attempts_that_is_of_no_run_is_none_of_ours(tmp_path: Path):
    for name in ("0001", "0002"):
        config = tiny(tmp_path, "text", f"run.dir={tmp_path}/attempts/{name}", "training.max_steps=2")
        assert train(config).verdict == "done"


def test_a_csv_among_the_attempts_is_refused(stopped: Path, tmp_path: Path):
    run = tmp_path / "run"
    shutil.copytree(stopped / "run", run)
    with pytest.raises(ConfigError, match="lies among the attempts"):
        go_on(run, f"telemetry.csv_log_path={run}/attempts/0001/telemetry.csv")


def test_a_damaged_best_of_an_ancestor_does_not_keep_a_run_from_its_end(tmp_path: Path):
    best = ("checkpoint.num_best_checkpoints=3", "checkpoint.max_rolling_checkpoints=1")
    train(tiny(tmp_path, "text", *best), 9)
    record = tmp_path / "run/attempts/0001/checkpoints/step_00000004/checkpoint.json"
    record.write_bytes(record.read_bytes().replace(b'"step":4', b'"step":5'))
    stop = StopRequest()
    screen = Recorder()
    result = resume_attempt(tmp_path / "run", [], stop, [screen])
    assert result.verdict == "done"
    assert any("step 4 is not among the best" in getattr(event, "text", "") for event in screen.events)


def test_s23_a_folder_without_its_record_is_said_to_be_passed_over(stopped: Path, tmp_path: Path):
    run = tmp_path / "run"
    shutil.copytree(stopped / "run", run)
    shutil.copytree(run / "attempts/0001/checkpoints/step_00000004", run / "attempts/0001/checkpoints/step_00000099")
    (run / "attempts/0001/checkpoints/step_00000099/checkpoint.json").unlink()
    screen = Recorder()
    assert resume_attempt(run, [], StopRequest(), [screen]).verdict == "done"
    assert any("step_00000099 has no record" in getattr(event, "text", "") for event in screen.events)


def test_s27_the_newest_checkpoint_is_found_by_its_step_and_no_link_leads_to_it(stopped: Path, tmp_path: Path):
    """There is no pointer that could dangle: a link, whatever its name, is said to be none and is not followed."""
    run = tmp_path / "run"
    shutil.copytree(stopped / "run", run)
    place = run / "attempts/0001/checkpoints"
    newest = sorted(place.iterdir())[-1]
    (place / "latest").symlink_to("step_00009999")
    (place / "step_00000099").symlink_to(newest.name)
    screen = Recorder()
    assert resume_attempt(run, [], StopRequest(), [screen]).verdict == "done"
    told = [getattr(event, "text", "") for event in screen.events]
    for name in ("latest", "step_00000099"):
        assert any(f"{name} has no record" in text and text.endswith("from step 6") for text in told), told
    assert train(tiny(tmp_path, run="untouched")).verdict == "done"
    assert end_of(run) == end_of(tmp_path / "untouched")


def test_data_overwritten_in_place_ends_the_attempt(tmp_path: Path):
    config = tiny(tmp_path)
    corpus = tmp_path / "corpus.txt"

    class Overwrites(Recorder):
        def emit(self, event: Event) -> None:
            super().emit(event)
            if len(self.rows) == 5:
                corpus.write_bytes(b"x" * corpus.stat().st_size)

    result = start_attempt(config, StopRequest(), [Overwrites()])
    assert (result.verdict, result.exit_code) == ("failed", 2)
    assert "corpus.txt" in json.loads((tmp_path / "run/attempts/0001/outcome.json").read_text())["reason"]
    assert not (tmp_path / "run/attempts/0001/checkpoints/step_00000008").exists()
    with pytest.raises(IntegrityError, match="is not the data"):
        go_on(tmp_path / "run")
