"""The text task: cross-entropy in nats, exact under any batch size, beside the n-gram tables."""

import math

import pytest
import torch
import torch.nn.functional as F

from pretrain.batch import Batch
from pretrain.errors import ConfigError
from pretrain.models import DecoderSettings, build_decoder
from pretrain.tasks import TextSettings, build_text
from tests.contract.rows import Complex, Tokens

CPU = torch.device("cpu")
TASK = build_text(TextSettings(), Tokens(), 12)
MODEL = build_decoder(DecoderSettings(width=16, init_std=0.2), TASK.input_spec, TASK.max_positions, 1)
SAMPLES = torch.randint(0, 16, (10, 13), generator=torch.Generator().manual_seed(3))


def batches(size: int) -> list[Batch]:
    return [Batch(rows, 0, 0, ("",) * len(rows)) for rows in SAMPLES.split(size)]


def totals(size: int) -> dict[str, dict[str, float]]:
    """Rows added one by one, as a validation pass does."""
    reference = TASK.fit_reference(batches(10))
    sums: dict[str, float] = {}
    for batch in batches(size):
        scores = TASK.score(MODEL, batch, CPU) | TASK.score_reference(batch, reference)
        for row in range(len(batch.samples)):
            for key, values in scores.items():
                sums[key] = sums.get(key, 0.0) + float(values[row])
    return {"": sums}


def test_the_loss_is_the_cross_entropy_of_every_next_token() -> None:
    batch = batches(10)[0]
    assert TASK.supervised(batch) == 10 * 12
    with torch.no_grad():
        logits = MODEL(SAMPLES[:, :-1])
        loss = TASK.loss_sum(MODEL, batch, CPU)
        by_hand = -F.log_softmax(logits, -1).gather(-1, SAMPLES[:, 1:, None]).squeeze(-1)
    assert float(loss) == pytest.approx(float(by_hand.sum()), rel=1e-6)
    torch.testing.assert_close(TASK.sample_losses(MODEL, batch, CPU).float(), by_hand.mean(1))


def test_s44_a_ragged_last_batch_gives_the_exact_mean() -> None:
    whole = TASK.summarize(totals(10))
    for size in (1, 3, 4, 7):
        summary = TASK.summarize(totals(size))
        assert summary.loss == pytest.approx(whole.loss, rel=1e-6)
        assert summary.baselines == whole.baselines
    with torch.no_grad():
        mean = float(TASK.loss_sum(MODEL, batches(10)[0], CPU)) / 120
    assert whole.loss == pytest.approx(mean, rel=1e-6)


def test_the_summary_says_nats_bits_and_baselines() -> None:
    summary = TASK.summarize({"": {"supervised": 8.0, "nats": 8.0, "samples": 2.0, "bigram": 4.0, "trigram": 2.0}})
    assert summary.loss == 1.0
    assert summary.bits_per_byte == pytest.approx(1 / math.log(2))
    assert summary.baselines == {"bigram": 0.5, "trigram": 0.25}
    assert (summary.nmse, summary.nmse_zero, summary.nmse_linear, summary.classes) == (None, None, None, {})
    assert TASK.summarize({"": {"supervised": 8.0, "nats": 8.0, "samples": 2.0}}).baselines == {}


def test_labels_do_not_split_the_mean() -> None:
    summary = TASK.summarize(
        {
            "a": {"supervised": 10.0, "nats": 10.0, "samples": 1.0},
            "b": {"supervised": 30.0, "nats": 90.0, "samples": 3.0},
        }
    )
    assert summary.loss == 2.5


def test_a_nan_is_not_hidden() -> None:
    summary = TASK.summarize({"": {"supervised": 8.0, "nats": math.nan, "samples": 2.0}})
    assert math.isnan(summary.loss)


def test_recordings_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"task\.name: text predicts tokens, .* complex samples; set task\.name=iq"):
        build_text(TextSettings(), Complex(), 12)


def test_the_reference_fits_its_own_text_better_with_more_context() -> None:
    # Two strides share each transition from one token, and a pair of tokens tells them apart.
    samples = torch.cat([Tokens().samples(index) for index in range(8)])
    batch = Batch(samples, 0, 0, ("",) * len(samples))
    scores = TASK.score_reference(batch, TASK.fit_reference([batch]))
    assert scores["trigram"].sum() < 0.5 * scores["bigram"].sum()
    assert scores["bigram"].shape == (32,)
