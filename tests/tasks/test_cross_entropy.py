"""The loss in chunks is the loss at once, in less memory; the z-loss is in what is optimised and nowhere else."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pretrain.batch import Batch, InputSpec
from pretrain.machine.precision import autocast
from pretrain.models import Decoder, DecoderSettings, build_decoder
from pretrain.tasks import TextSettings, build_text
from pretrain.tasks.cross_entropy import cross_entropy
from tests.contract.rows import Tokens
from tests.live_bytes import most_bytes

CPU = torch.device("cpu")
IDS = torch.randint(0, 50, (3, 13), generator=torch.Generator().manual_seed(3))
INPUTS, TARGETS = IDS[:, :-1], IDS[:, 1:]
POSITIONS = TARGETS.numel()


def model_of(vocabulary: int = 50, **settings: object) -> Decoder:
    return build_decoder(
        DecoderSettings(**{"width": 16, "init_std": 0.3, **settings}), InputSpec("tokens", vocabulary), 64, 1
    )


def gradients(model: nn.Module, precision: str, z_loss: float, chunk: int) -> tuple[float, dict[str, torch.Tensor]]:
    model.zero_grad()
    with autocast(CPU, precision):
        loss = cross_entropy(model, INPUTS, TARGETS, "sum", z_loss, chunk)
    assert loss.dtype == torch.float32
    loss.backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    return float(loss.detach()), found


@pytest.mark.parametrize("chunk", [1, 7, POSITIONS - 1, POSITIONS, 1000])
@pytest.mark.parametrize("z_loss", [0.0, 0.01])
@pytest.mark.parametrize(("tied", "cap"), [(True, None), (False, 3.0)])
@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 2e-6), ("bfloat16", 1e-2), ("float16", 1e-3)])
def test_chunks_give_the_loss_and_the_gradients_of_all_at_once(
    precision: str, tolerance: float, tied: bool, cap: float | None, z_loss: float, chunk: int
) -> None:
    """Tolerance: of the largest element of each gradient. In 16 bits both are rounded, each in its own order."""
    model = model_of(tie_embeddings=tied, logit_soft_cap=cap)
    whole, expected = gradients(model, precision, z_loss, 0)
    value, found = gradients(model, precision, z_loss, chunk)
    assert value == pytest.approx(whole, rel=1e-6)
    assert found.keys() == expected.keys() == dict(model.named_parameters()).keys()
    for name, gradient in found.items():
        largest = float(expected[name].abs().max())
        torch.testing.assert_close(gradient, expected[name], rtol=0, atol=tolerance * largest, msg=name)


def test_in_16_bits_chunks_add_up_in_float32() -> None:
    """Not further from the exact gradient of the head than all at once, however many chunks there are."""
    model = model_of(tie_embeddings=False)
    _, exact = gradients(model, "float32", 0.0, 0)
    errors = []
    for chunk in (0, 1):
        _, found = gradients(model, "bfloat16", 0.0, chunk)
        errors.append(float((found["lm_head.weight"] - exact["lm_head.weight"]).norm()))
    assert errors[1] < 1.1 * errors[0]


@pytest.mark.parametrize("chunk", [0, 5])
def test_each_position_by_itself_is_the_same_in_chunks(chunk: int) -> None:
    model = model_of()
    with torch.no_grad():
        each = cross_entropy(model, INPUTS, TARGETS, "none", 0.0, chunk)
        by_hand = -F.log_softmax(model(INPUTS), -1).gather(-1, TARGETS[..., None]).flatten()
    assert each.shape == (POSITIONS,)
    torch.testing.assert_close(each, by_hand, rtol=1e-5, atol=1e-6)


def test_no_more_than_the_logits_of_a_chunk_stand_in_memory() -> None:
    """Vocabulary 4096, 120 positions: the logits are 2 MB, which all at once needs several times over."""
    model = model_of(4096, tie_embeddings=False)
    ids = torch.zeros(2, 60, dtype=torch.long)
    logits, head = 120 * 4096 * 4, 4096 * 16 * 4
    most = {}
    for chunk in (0, 10):
        cross_entropy(model, ids, ids, "sum", 1e-4, chunk).backward()
        most[chunk] = most_bytes(lambda chunk=chunk: cross_entropy(model, ids, ids, "sum", 1e-4, chunk).backward())
    assert most[0] > 3 * logits
    # Some copies of the logits of one chunk, the gradient of the head and that of the trunk.
    assert most[10] < 6 * logits * 10 / 120 + 3 * head + logits / 4


def test_the_z_loss_is_the_mean_square_of_log_z() -> None:
    model = model_of()
    with torch.no_grad():
        squares = torch.logsumexp(model(INPUTS).double(), -1).square().sum()
        without, with_it = (cross_entropy(model, INPUTS, TARGETS, "sum", z, 0) for z in (0.0, 0.1))
    assert float(with_it - without) == pytest.approx(0.1 * float(squares), rel=1e-4)


@pytest.mark.parametrize("chunk", [0, 16])
def test_samples_and_validation_are_without_the_z_loss(chunk: int) -> None:
    plain, task = (
        build_text(settings, Tokens(), 12)
        for settings in (TextSettings(), TextSettings(chunk_tokens=chunk, z_loss=0.5))
    )
    model = model_of(16)
    batch = Batch(IDS % 16, 0, 0, ("",) * 3)
    with torch.no_grad():
        assert float(task.loss_sum(model, batch, CPU)) > 1.05 * float(plain.loss_sum(model, batch, CPU))
        torch.testing.assert_close(task.sample_losses(model, batch, CPU), plain.sample_losses(model, batch, CPU))
        torch.testing.assert_close(task.score(model, batch, CPU)["nats"], plain.score(model, batch, CPU)["nats"])


def test_a_model_that_is_not_split_is_named() -> None:
    with pytest.raises(TypeError, match="Embedding: expected `hidden` and `logits` for a loss in chunks"):
        cross_entropy(nn.Embedding(50, 50), INPUTS, TARGETS, "sum", 0.0, 4)
