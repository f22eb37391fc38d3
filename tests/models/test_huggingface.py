"""Folders of Hugging Face: what is taken from them, and every way in which one is refused."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from pretrain.batch import InputSpec
from pretrain.errors import ConfigError, IntegrityError
from pretrain.models import Decoder, DecoderSettings, attentions, build_decoder
from pretrain.models.huggingface import INDEX, load_huggingface

TOKENS = InputSpec("tokens", 256)
SETTINGS = DecoderSettings(width=16, layers=2, heads=4, kv_heads=2, ffn_width=24, tie_embeddings=False)
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def decoder(settings: DecoderSettings = SETTINGS, spec: InputSpec = TOKENS, seed: int = 1) -> Decoder:
    return build_decoder(settings, spec, 8, seed)


def weights(model: nn.Module, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    return {name: tensor.to(dtype).clone() for name, tensor in model.state_dict().items()}


def write(folder: Path, tensors: dict[str, torch.Tensor], **changes: Any) -> Path:
    """Write a folder with one file of weights."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}, indent=2))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "llama", weights(decoder(seed=7)))


@pytest.mark.parametrize("scaling", [None, {"rope_type": "default"}, {"type": "default"}])
def test_a_scaling_that_scales_nothing_is_none(tmp_path: Path, scaling: Any) -> None:
    given = weights(decoder(seed=7))
    assert load_huggingface(write(tmp_path / "llama", given, rope_scaling=scaling), decoder(), SETTINGS) == []
    theta = {**(scaling or {}), "rope_type": "default", "rope_theta": 10000.0}
    folder = write(tmp_path / "other", given, rope_scaling=theta, rope_theta=7.0)
    assert load_huggingface(folder, decoder(), SETTINGS) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_weight_is_taken_and_widened(tmp_path: Path, dtype: torch.dtype) -> None:
    given = weights(decoder(seed=7), dtype)
    model = decoder()
    assert load_huggingface(write(tmp_path / "llama", given), model, SETTINGS) == []
    for name, tensor in model.state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, given[name].float()), name


def test_shards_by_their_index_and_links_as_in_the_cache(tmp_path: Path) -> None:
    given = weights(decoder(seed=7))
    folder, blobs = tmp_path / "snapshots" / "0123", tmp_path / "blobs"
    folder.mkdir(parents=True)
    blobs.mkdir()
    names = sorted(given)
    files = {"model-00001-of-00002.safetensors": names[:9], "model-00002-of-00002.safetensors": names[9:]}
    for file, own in files.items():
        save_file({name: given[name] for name in own}, blobs / file)
        (folder / file).symlink_to(blobs / file)
    (blobs / "config").write_text(json.dumps(CONFIG))
    (folder / "config.json").symlink_to(blobs / "config")
    index = {"metadata": {}, "weight_map": {name: file for file, own in files.items() for name in own}}
    (folder / INDEX).write_text(json.dumps(index))
    model = decoder()
    load_huggingface(folder, model, SETTINGS)
    assert all(torch.equal(tensor, given[name]) for name, tensor in model.state_dict().items())
    for wrong, expected in (
        ({**index["weight_map"], "more": "model-00001-of-00002.safetensors"}, "names tensors that no file holds: more"),
        (
            {**index["weight_map"], names[0]: "model-00002-of-00002.safetensors"},
            f"holds {names[0]}, and {INDEX} places",
        ),
        ({**index["weight_map"], names[0]: "../other.safetensors"}, "weight_map: expected names"),
        ({**index["weight_map"], names[0]: "gone.safetensors"}, "gone.safetensors: missing"),
    ):
        (folder / INDEX).write_text(json.dumps({"weight_map": wrong}))
        with pytest.raises(IntegrityError, match=expected):
            load_huggingface(folder, decoder(), SETTINGS)


def test_a_head_that_is_the_embedding_may_be_written_out(tmp_path: Path) -> None:
    tied = DecoderSettings(**{**vars(SETTINGS), "tie_embeddings": True})
    given = weights(decoder(tied, seed=7))
    head = {"lm_head.weight": given["model.embed_tokens.weight"].clone()}
    old = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)}
    folder = write(tmp_path / "tied", given | head | old, tie_word_embeddings=True)
    model = decoder(tied)
    load_huggingface(folder, model, tied)
    assert torch.equal(model.model.embed_tokens.weight, given["model.embed_tokens.weight"])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2' is none of"),
        ({"rope_parameters": [1]}, r"rope_parameters is \[1\]; expected an object"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps is 'small'; expected a number from 0 to 1"),
        ({"rms_norm_eps": None}, "rms_norm_eps is None; expected a number"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps is 1000"),
        ({"vocab_size": 32000}, "vocab_size is 32000, but the vocabulary of data.tokenizer is 256"),
        ({"hidden_size": 32, "head_dim": 4}, "hidden_size is 32, but model.width is 16"),
        ({"num_hidden_layers": 3}, "num_hidden_layers is 3, but model.layers is 2"),
        ({"num_attention_heads": 2}, "num_attention_heads is 2, but model.heads is 4"),
        ({"num_key_value_heads": None}, "num_key_value_heads is 4, but model.kv_heads is 2"),
        ({"head_dim": 8}, "head_dim is 8, but model.width / model.heads is 4"),
        ({"intermediate_size": 32}, "intermediate_size is 32, but model.ffn_width is 24"),
        ({"rope_theta": 500000.0}, "rope_theta is 500000.0, but model.rope_base is 10000.0"),
        ({"rope_parameters": {"rope_theta": 5.0, "rope_type": "yarn"}}, "rope_theta is 5.0.*rope_type is 'yarn'"),
        ({"rope_scaling": {"rope_type": "default", "rope_theta": 5.0}}, "rope_theta is 5.0, but model.rope_base"),
        ({"rope_scaling": {"rope_type": "default", "type": "linear"}}, "rope_scaling is .* expected None"),
        ({"rope_scaling": {"rope_type": ["default"]}}, "rope_scaling is .* expected None"),
        ({"rope_scaling": {}}, "rope_scaling is .* expected None"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling is .* which this decoder does not do"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings is True, but model.tie_embeddings is False"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"hidden_size": 32, "num_hidden_layers": 3}, "hidden_size.*; num_hidden_layers"),  # all of them at once
    ],
)
def test_another_model_is_refused_by_the_key(folder: Path, changes: dict[str, Any], expected: str) -> None:
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    model = decoder()
    before = weights(model)
    with pytest.raises(ConfigError, match=expected):
        load_huggingface(folder, model, SETTINGS)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_another_small_number_in_the_norms_is_told(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({**CONFIG, "rms_norm_eps": 1e-5}))
    assert load_huggingface(folder, decoder(), SETTINGS) == [
        "the norms of the weights it starts from add 1e-05, these add 1e-06"
    ]


def test_what_the_files_hold_is_compared_whole(tmp_path: Path) -> None:
    given = weights(decoder(seed=7))
    del given["model.norm.weight"]
    given["model.extra"] = torch.ones(2)
    given["model.layers.0.mlp.up_proj.weight"] = torch.ones(3, 16)
    given["model.layers.1.mlp.up_proj.weight"] = torch.ones(24, 16, dtype=torch.float64)
    given["lm_head.weight"][3, 3] = float("nan")
    model = decoder()
    before = weights(model)
    with pytest.raises(ConfigError) as caught:
        load_huggingface(write(tmp_path / "odd", given), model, SETTINGS)
    for text in (
        "model.extra: only in the files",
        "model.norm.weight: not in the files",
        "model.layers.0.mlp.up_proj.weight: expected [24, 16], found [3, 16]",
        "model.layers.1.mlp.up_proj.weight: expected float32, bfloat16 or float16, found torch.float64",
        "lm_head.weight: holds a number that is not finite",
    ):
        assert text in str(caught.value)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_pickle_is_never_read(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ConfigError, match=r"found 0; pytorch_model.bin can run code when read, and is not read"):
        load_huggingface(folder, decoder(), SETTINGS)


def test_two_files_without_an_index_are_refused(folder: Path) -> None:
    save_file({"more": torch.ones(1)}, folder / "other.safetensors")
    with pytest.raises(ConfigError, match=r"expected one .* found 2"):
        load_huggingface(folder, decoder(), SETTINGS)


def test_what_a_stranger_wrote_is_shown_in_a_line(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({**CONFIG, "hidden_size": "x" * 1_000_000}))
    with pytest.raises(ConfigError) as caught:
        load_huggingface(folder, decoder(), SETTINGS)
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", INDEX])
def test_a_link_out_of_the_folder_is_not_followed(folder: Path, tmp_path: Path, name: str) -> None:
    elsewhere = tmp_path / "elsewhere.safetensors"
    elsewhere.write_bytes((folder / name).read_bytes() if (folder / name).exists() else b"{}")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(elsewhere)
    with pytest.raises(IntegrityError, match=r"expected a file of this folder, or a link into \.\./\.\./blobs"):
        load_huggingface(folder, decoder(), SETTINGS)


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("model.safetensors", b"\x00" * 40, IntegrityError),
        ("model.safetensors", b"", IntegrityError),
        ("config.json", b"{", IntegrityError),
        ("config.json", b"[]", IntegrityError),
        ("config.json", None, ConfigError),
    ],
)
def test_a_damaged_file_is_named(folder: Path, name: str, content: bytes | None, error: type[Exception]) -> None:
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    with pytest.raises(error, match=name):
        load_huggingface(folder, decoder(), SETTINGS)


def test_a_file_cut_short_is_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(IntegrityError, match="expected a safetensors file"):
        load_huggingface(folder, decoder(), SETTINGS)


def test_patches_and_missing_folders_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="over tokens"):
        load_huggingface(folder, decoder(spec=InputSpec("patches", 8)), SETTINGS)
    with pytest.raises(ConfigError, match="expected a folder, found none there"):
        load_huggingface(folder / "gone", decoder(), SETTINGS)


@dataclass(frozen=True)
class Normalised(DecoderSettings):
    """A decoder that normalises queries and keys."""

    qk_norm: bool = True


def test_qwen3_needs_a_decoder_that_normalises_queries_and_keys(tmp_path: Path) -> None:
    def normalised(seed: int) -> Decoder:
        model = decoder(seed=seed)
        for _, attention in attentions(model):
            attention.q_norm, attention.k_norm = nn.RMSNorm(4), nn.RMSNorm(4)
            attention.q_norm.weight.data.fill_(float(seed))
        return model

    given = weights(normalised(7))
    folder = write(tmp_path / "qwen", given, model_type="qwen3", head_dim=4)
    with pytest.raises(ConfigError, match=r"queries and keys|qk_norm is false"):
        load_huggingface(folder, decoder(), SETTINGS)
    settings = Normalised(**vars(SETTINGS) | {"qk_norm": True})
    model = normalised(1)
    load_huggingface(folder, model, settings)
    assert all(torch.equal(tensor, given[name]) for name, tensor in model.state_dict().items())
    with pytest.raises(ConfigError, match="qk_norm is true; expected false"):
        load_huggingface(write(tmp_path / "llama", given), normalised(1), settings)
    # Qwen3 has its own default for the size of a head.
    with pytest.raises(ConfigError, match="head_dim is 128"):
        load_huggingface(write(tmp_path / "wide", given, model_type="qwen3"), normalised(1), settings)
