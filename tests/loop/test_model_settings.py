"""What is set outside of the `model` section reaches the model of a run."""

from pathlib import Path

import numpy as np
import pytest
import torch

from pretrain.batch import Batch
from pretrain.build import BuiltRun, build_data, build_run
from tests.tiny import tiny

CPU = torch.device("cpu")


def built(folder: Path, *overrides: str) -> tuple[BuiltRun, Batch]:
    """A run over a folder of short documents, and a batch in which some of them meet."""
    documents = folder / "documents"
    documents.mkdir(exist_ok=True)
    for number in range(40):
        (documents / f"{number:02}.txt").write_text(f"document {number}" + "." * (number % 7))
    given = (f"data.train.letters.path={documents}", f"data.validation.letters.path={documents}", *overrides)
    config = tiny(folder, "text", *given)
    data = build_data(config)
    windows = data.train.read(np.arange(8))
    assert (windows == 0).any(dim=1).sum() > 4
    return build_run(config, data, CPU), Batch(windows, 0, 0, ("",) * len(windows))


def test_a_document_mask_cuts_where_files_are_joined(tmp_path: Path) -> None:
    """The losses up to the first join are as before; behind it they are those of the tokens from there on."""
    run, batch = built(tmp_path, "data.document_mask=true")
    plain, _ = built(tmp_path)
    with torch.no_grad():
        masked, whole = (one.state.model(batch.samples[:, :-1]) for one in (run, plain))
        for row, ids in enumerate(batch.samples[:, :-1].tolist()):
            joins = [at for at, token in enumerate(ids) if token == 0 and at > 0]
            if not joins:
                continue
            torch.testing.assert_close(masked[row, : joins[0]], whole[row, : joins[0]], rtol=1e-5, atol=1e-6)
            alone = plain.state.model(batch.samples[row : row + 1, joins[-1] : -1])[0]
            torch.testing.assert_close(masked[row, joins[-1] :], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("how", ["none", "full", "selective"])
def test_activation_checkpointing_is_that_of_the_config(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, batch = built(tmp_path, f"training.activation_checkpointing={how}")
    used: list[str] = []
    real = torch.utils.checkpoint.checkpoint

    def counted(*inputs: object, **options: object) -> object:
        used.append("selective" if "context_fn" in options else "full")
        return real(*inputs, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("pretrain.models.block.checkpoint", counted)
    run.task.loss_sum(run.state.model, batch, CPU).backward()  # type: ignore[no-untyped-call]
    assert used == ([] if how == "none" else [how] * 2)
    used.clear()
    run.task.sample_losses(run.state.model, batch, CPU)
    assert used == []
