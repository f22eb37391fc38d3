"""Models by name: they are the published ones, what is given wins, and the resolved text holds the numbers."""

import pytest
import torch

from pretrain.batch import InputSpec
from pretrain.config import RunConfig, parse, to_yaml
from pretrain.models import Decoder, DecoderSettings, build_decoder
from pretrain.models.sizes import SIZES
from tests.config.written import IQ, config, refusal


def of_size(name: str, *overrides: str) -> RunConfig:
    return config(f"model.size={name}", *overrides)


def on_meta(settings: DecoderSettings, vocabulary: int, positions: int) -> Decoder:
    with torch.device("meta"):
        return build_decoder(settings, InputSpec("tokens", vocabulary), positions, 1)


@pytest.mark.parametrize(
    ("name", "vocabulary", "positions", "published"),
    [
        ("gpt2-124m", 50257, 1024, 124_439_808),
        ("gpt2-355m", 50257, 1024, 354_823_168),
        ("llama-1b", 128256, 8, 1_235_814_400),
        ("llama-7b", 32000, 8, 6_738_415_616),
    ],
)
def test_with_its_own_vocabulary_each_has_the_published_parameters(
    name: str, vocabulary: int, positions: int, published: int
) -> None:
    settings = of_size(name).model.settings
    model = on_meta(settings, vocabulary, positions)
    # GPT-2 has biases, ours has none: of a block 3 d of q, k and v, d of o, 4 d and d of the feed-forward layer, 2 d of
    # the norms, and d of the last norm.
    biases = settings.width * (11 * settings.layers + 1) if name.startswith("gpt2") else 0
    assert sum(parameter.numel() for parameter in model.parameters()) == published - biases


@pytest.mark.parametrize("name", SIZES)
def test_the_resolved_text_holds_the_numbers_and_loads_to_itself(name: str) -> None:
    found = of_size(name)
    settings, text = found.model.settings, to_yaml(found)
    assert settings.size == name
    assert settings.ffn_width is not None
    for key, value in SIZES[name].items():
        assert getattr(settings, key) == value
        assert f"  {key}: " in text
    assert parse(text, "again.yaml") == found
    assert to_yaml(parse(text, "again.yaml")) == text


def test_tiny_is_what_a_model_is_by_default() -> None:
    tiny, default = of_size("tiny").model.settings, DecoderSettings()
    made = [on_meta(settings, 256, 16) for settings in (tiny, default)]
    names = [{name: tuple(p.shape) for name, p in model.named_parameters()} for model in made]
    assert names[0] == names[1]


def test_what_is_given_wins() -> None:
    settings = of_size("gpt2-124m", "model.layers=3", "model.positions=rotary").model.settings
    assert (settings.layers, settings.positions, settings.width, settings.norm) == (3, "rotary", 768, "layernorm")


def test_without_a_size_nothing_is_filled_in() -> None:
    assert config().model.settings == DecoderSettings()
    assert config("model.size=null").model.settings == DecoderSettings()


def test_a_size_is_one_of_the_table_and_no_reference() -> None:
    assert refusal("model.size=gpt2-125m") == [
        "override model.size=gpt2-125m: model.size must be one of tiny, gpt2-124m, gpt2-355m, llama-1b, llama-7b, or "
        "null; found 'gpt2-125m'; did you mean gpt2-124m?"
    ]
    assert refusal("model.size=${task.name}") == [
        "x.yaml: model.size must be a name, not a reference; found '${task.name}'"
    ]


@pytest.mark.parametrize("name", ["tiny", "gpt2-124m"])
def test_patches_have_the_same_trunk(name: str) -> None:
    settings = config(f"model.size={name}", text=IQ).model.settings
    with torch.device("meta"):
        model = build_decoder(settings, InputSpec("patches", 32), 31, 1)
    trunk = {key for key, _ in model.named_parameters() if ".layers." in key}
    assert trunk == {key for key, _ in on_meta(settings, 256, 31).named_parameters() if ".layers." in key}
    assert dict(model.named_parameters())["lm_head.weight"].shape == (32, settings.width)


def test_what_means_nothing_for_samples_is_refused() -> None:
    for override, told in (
        ("model.logit_soft_cap=30", "limits the logits of tokens, and task.name=iq has none; set it to null"),
        (
            "data.document_mask=true",
            "keeps the documents of a text apart, and task.name=iq reads none; set it to false",
        ),
    ):
        assert refusal(override, text=IQ) == [f"x.yaml with {override}: {override.partition('=')[0]} {told}"]
