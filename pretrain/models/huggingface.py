"""Weights of a Llama or Qwen3 folder of Hugging Face, checked against the decoder that is to take them."""

import json
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from pretrain import reading
from pretrain.errors import ConfigError, IntegrityError
from pretrain.models.decoder import Decoder
from pretrain.models.parts import NORM_EPS
from pretrain.models.settings import DecoderSettings, ffn_width

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
MODEL_TYPES = ("llama", "qwen3")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_WIDENED = (torch.float32, torch.bfloat16, torch.float16)
_JSON_LIMIT = 16 << 20
_FAULTS_SHOWN = 20
_LETTERS_SHOWN = 200
# What Llama and Qwen3 are, in settings of the decoder; one that the decoder does not have is as Llama has it.
_FIXED: Mapping[str, Any] = {
    "norm": "rmsnorm",
    "norm_position": "pre",
    "activation": "swiglu",
    "positions": "rotary",
    "logit_soft_cap": None,
    "sliding_window": None,
    "experts": None,
    "parametrization": "standard",
}


def load_huggingface(folder: Path, model: nn.Module, settings: Any) -> list[str]:
    """Fill `model` with the weights of `folder`, widened to float32, and return what a person should know of them.

    Nothing is written into the model before every size, name, dtype and shape was found right. Only safetensors files
    are read. Raises ConfigError where the folder is none of a model that this decoder is, naming all that differs, and
    IntegrityError where a file is damaged.
    """
    places, notes = _checked(folder, model, settings, with_values=True)
    state = model.state_dict()
    with torch.no_grad():
        for name, tensor in _tensors(places):
            state[name].copy_(tensor)
    return notes


def check_huggingface(folder: Path, model: nn.Module, settings: Any) -> list[str]:
    """Raise and return what `load_huggingface` would, for a model that may have no values; no weight is read."""
    return _checked(folder, model, settings, with_values=False)[1]


def _checked(folder: Path, model: nn.Module, settings: Any, *, with_values: bool) -> tuple[dict[str, Path], list[str]]:
    """Return the file of each tensor, once all fits, and what a person should know."""
    if not isinstance(model, Decoder) or not isinstance(settings, DecoderSettings) or model.spec.kind != "tokens":
        raise ConfigError(
            "init.from_huggingface: expected model.name=decoder over tokens; other models take no weights"
        )
    if not folder.is_dir():
        raise ConfigError(f"init.from_huggingface: {folder}: expected a folder, found none there")
    config = _config(folder)
    faults, notes = _compare(config, model, settings)
    if faults:
        raise ConfigError(f"init.from_huggingface: {folder / CONFIG} is not this model: {'; '.join(faults)}")
    places = _places(folder, tied=model.lm_head is None)
    _check(folder, model.state_dict(), places, with_values=with_values)
    return places, notes


def _config(folder: Path) -> dict[str, Any]:
    config = _read_json(folder / CONFIG)
    kind = config.get("model_type")
    if kind not in MODEL_TYPES:
        raise ConfigError(
            f"init.from_huggingface: {folder / CONFIG}: model_type {_value(kind)} is none of {MODEL_TYPES}"
        )
    return config


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ConfigError(f"init.from_huggingface: {path}: missing; expected the folder of a Llama or Qwen3 model")
    try:
        value = json.loads(reading.read_regular(_real(path), limit=_JSON_LIMIT))
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{path}: expected JSON: {error}") from error
    if not isinstance(value, dict):
        raise IntegrityError(f"{path}: expected an object, found {type(value).__name__}")
    return value


def _real(path: Path) -> Path:
    """Return where the file of a folder lies: in it, or among the blobs of the cache of Hugging Face, as a link."""
    real, folder = path.resolve(), path.parent.resolve()
    if real.parent not in (folder, folder.parent.parent / "blobs"):
        raise IntegrityError(
            f"init.from_huggingface: {path}: expected a file of this folder, or a link into ../../blobs as the "
            f"cache of Hugging Face has it, found a link to {real}; copy the file, or name the folder that holds it"
        )
    return real


def _compare(config: Mapping[str, Any], model: Decoder, settings: DecoderSettings) -> tuple[list[str], list[str]]:
    """Return what of a config.json this decoder is not, and what is near enough."""
    is_qwen = config["model_type"] == "qwen3"
    heads = config.get("num_attention_heads", 32)
    width = config.get("hidden_size")
    rope, scaling, eps = (
        config.get("rope_parameters") or {},
        config.get("rope_scaling"),
        config.get("rms_norm_eps", 1e-6),
    )
    wrong = [
        *([] if isinstance(rope, dict) else [f"rope_parameters is {_value(rope)}; expected an object"]),
        *([] if _is_share(eps) else [f"rms_norm_eps is {_value(eps)}; expected a number from 0 to 1"]),
    ]
    if wrong:
        return wrong, []
    is_scaled = scaling is not None and not _is_default(scaling)
    if scaling is not None and not is_scaled:
        rope = {**scaling, **rope}
    head_size = config.get("head_dim") or (128 if is_qwen else _whole(width, heads))
    sizes = [
        ("vocab_size", config.get("vocab_size"), "the vocabulary of data.tokenizer", model.spec.size),
        ("hidden_size", width, "model.width", settings.width),
        ("num_hidden_layers", config.get("num_hidden_layers"), "model.layers", settings.layers),
        ("num_attention_heads", heads, "model.heads", settings.heads),
        (
            "num_key_value_heads",
            config.get("num_key_value_heads") or (32 if is_qwen else heads),
            "model.kv_heads",
            settings.kv_heads,
        ),
        ("head_dim", head_size, "model.width / model.heads", settings.width // settings.heads),
        ("intermediate_size", config.get("intermediate_size"), "model.ffn_width", ffn_width(settings)),
        (
            "rope_theta",
            rope.get("rope_theta", config.get("rope_theta", 10000.0)),
            "model.rope_base",
            settings.rope_base,
        ),
        (
            "tie_word_embeddings",
            config.get("tie_word_embeddings", False),
            "model.tie_embeddings",
            settings.tie_embeddings,
        ),
    ]
    faults = [f"{name} is {_value(found)}, but {ours} is {own!r}" for name, found, ours, own in sizes if found != own]
    expected = {
        "hidden_act": ("silu", "silu"),
        "attention_bias": (False, False),
        "mlp_bias": (False, False),
        "use_sliding_window": (False, False),
    }
    for name, (default, wanted) in expected.items():
        found = config.get(name, default)
        if found != wanted:
            faults.append(f"{name} is {_value(found)}, which this decoder does not do; expected {wanted!r}")
    if is_scaled:
        faults.append(f"rope_scaling is {_value(scaling)}, which this decoder does not do; expected None")
    if rope.get("rope_type", "default") != "default":
        faults.append(f"rope_type is {_value(rope['rope_type'])}, which this decoder does not do; expected 'default'")
    for name, wanted in _FIXED.items():
        if (own := getattr(settings, name, wanted)) != wanted:
            faults.append(f"model.{name} is {own!r}; expected {wanted!r}")
    faults += _norms_of_heads(is_qwen, settings)
    notes = [] if eps == NORM_EPS else [f"the norms of the weights it starts from add {eps:g}, these add {NORM_EPS:g}"]
    return faults, notes


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and 0 <= value <= 1


def _is_default(scaling: Any) -> bool:
    """Whether a `rope_scaling` says that nothing is scaled, by `rope_type` or by `type`, as older files have it."""
    if not isinstance(scaling, dict):
        return False
    kinds = [scaling[name] for name in ("rope_type", "type") if name in scaling]
    return bool(kinds) and all(kind == "default" for kind in kinds)


def _norms_of_heads(is_qwen: bool, settings: DecoderSettings) -> Iterator[str]:
    """Yield what is wrong where Qwen3 normalises queries and keys and this decoder does not, or the reverse."""
    own = getattr(settings, "qk_norm", None)
    if is_qwen and own is None:
        yield "qwen3 normalises queries and keys, and the decoder of this version does not"
    elif is_qwen != bool(own):
        yield f"model.qk_norm is {str(own).lower()}; expected {str(is_qwen).lower()}"


def _whole(width: Any, heads: Any) -> Any:
    return width // heads if isinstance(width, int) and isinstance(heads, int) and heads else None


def _places(folder: Path, *, tied: bool) -> dict[str, Path]:
    """Return the file of each tensor that the model takes, by name."""
    if (folder / INDEX).is_file():
        named = _read_json(folder / INDEX).get("weight_map")
        if not isinstance(named, dict) or not all(isinstance(one, str) and _is_plain(one) for one in named.values()):
            raise IntegrityError(f"{folder / INDEX}: weight_map: expected names of safetensors files by tensor")
        shards = [folder / name for name in sorted(set(named.values()))]
    else:
        shards = sorted(folder.glob("*.safetensors"))
        if len(shards) != 1:
            pickles = sorted(path.name for path in folder.iterdir() if path.suffix in _PICKLES)
            more = f"; {', '.join(pickles)} can run code when read, and is not read: convert it" if pickles else ""
            raise ConfigError(
                f"init.from_huggingface: {folder}: expected one *.safetensors file, or {INDEX}; found {len(shards)}"
                + more
            )
        named = None
    places: dict[str, Path] = {}
    for shard in shards:
        for name in _names(shard):
            if named is not None and named.get(name) != shard.name:
                raise IntegrityError(f"{shard}: holds {_cut(name)}, and {INDEX} places it in {_value(named.get(name))}")
            if name in places:
                raise IntegrityError(f"{shard}: holds {_cut(name)}, and so does {places[name].name}")
            places[name] = shard
    if named is not None and (lost := sorted(set(named) - set(places))):
        raise IntegrityError(f"{folder}: {INDEX} names tensors that no file holds: {_shown(lost)}")
    # A head that is the embedding may be written out, and old files hold the wavelengths of the positions.
    left_out = {"lm_head.weight"} if tied else set()
    return {
        name: path for name, path in places.items() if name not in left_out and not name.endswith("rotary_emb.inv_freq")
    }


def _is_plain(name: str) -> bool:
    return name.endswith(".safetensors") and "/" not in name and "\\" not in name and not name.startswith(".")


def _names(path: Path) -> list[str]:
    with _open(path) as opened:
        return sorted(opened.keys())


def _check(folder: Path, state: Mapping[str, torch.Tensor], places: Mapping[str, Path], *, with_values: bool) -> None:
    """Raise ConfigError with the names, dtypes and shapes in which the files and the model differ."""
    faults = [f"{name}: only in the files" for name in sorted(set(places) - set(state))]
    faults += [f"{name}: not in the files" for name in sorted(set(state) - set(places))]
    for name, tensor in _tensors({name: path for name, path in places.items() if name in state}):
        if tensor.shape != state[name].shape:
            faults.append(f"{name}: expected {list(state[name].shape)}, found {list(tensor.shape)}")
        if tensor.dtype not in _WIDENED:
            faults.append(f"{name}: expected float32, bfloat16 or float16, found {tensor.dtype}")
        elif with_values and not bool(torch.isfinite(tensor).all()):
            faults.append(f"{name}: holds a number that is not finite")
    if faults:
        raise ConfigError(f"init.from_huggingface: {folder} does not fit this model: {_shown(faults)}")


def _tensors(places: Mapping[str, Path]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors by name, one file after the other; they lie in the file until they are copied."""
    for path in sorted(set(places.values())):
        with _open(path) as opened:
            for name in sorted(one for one, place in places.items() if place == path):
                try:
                    yield name, opened.get_tensor(name)
                except SafetensorError as error:
                    raise IntegrityError(f"{path}: {_cut(name)}: {_cut(str(error))}") from error


def _open(path: Path) -> Any:
    if not path.is_file():
        raise IntegrityError(f"{path}: missing, and {INDEX} names it")
    try:
        return safe_open(_real(path), framework="pt", device="cpu")
    except SafetensorError as error:
        raise IntegrityError(f"{path}: expected a safetensors file: {_cut(str(error))}") from error


def _value(found: Any) -> str:
    """Return the repr of what a file says, of which a person is shown no more than a line: a stranger wrote it."""
    short = reprlib.Repr()
    short.maxstring = short.maxlong = short.maxother = _LETTERS_SHOWN
    return short.repr(found)


def _cut(text: str) -> str:
    return text if len(text) <= _LETTERS_SHOWN else f"{text[:_LETTERS_SHOWN]}..."


def _shown(faults: Iterable[str]) -> str:
    found = [_cut(fault) for fault in faults]
    return "; ".join(found[:_FAULTS_SHOWN]) + (
        f"; and {len(found) - _FAULTS_SHOWN} more" if len(found) > _FAULTS_SHOWN else ""
    )
