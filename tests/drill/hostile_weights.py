"""Folders of Hugging Face as a stranger may give them: a config.json, an index, and files beside them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.drill.hostile_places import Commands, Place, make
from tests.tiny import write_config

# The config.json of a Llama that the config of `write_config` fits, with one layer.
DESCRIBED: Mapping[str, Any] = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 256,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "max_position_embeddings": 16,
}
SHAPES: Mapping[str, tuple[int, ...]] = {
    "model.embed_tokens.weight": (256, 16),
    "model.layers.0.input_layernorm.weight": (16,),
    "model.layers.0.self_attn.q_proj.weight": (16, 16),
    "model.layers.0.self_attn.k_proj.weight": (8, 16),
    "model.layers.0.self_attn.v_proj.weight": (8, 16),
    "model.layers.0.self_attn.o_proj.weight": (16, 16),
    "model.layers.0.post_attention_layernorm.weight": (16,),
    "model.layers.0.mlp.gate_proj.weight": (64, 16),
    "model.layers.0.mlp.up_proj.weight": (64, 16),
    "model.layers.0.mlp.down_proj.weight": (16, 64),
    "model.norm.weight": (16,),
}


def weights_folder(work: Path, described: object = DESCRIBED) -> Path:
    """Write the folder of a Llama that has no weights yet."""
    folder = work / "weights"
    folder.mkdir()
    data = described if isinstance(described, bytes) else json.dumps(described).encode()
    (folder / "config.json").write_bytes(data)
    return folder


def weights_commands(work: Path, folder: Path) -> Commands:
    """Return what meets such a folder."""
    given = ["--config", write_config(work), "model.layers=1", f"init.from_huggingface={folder}"]
    return [["train", *given], ["plan", *given]]


def safetensors_of(fill: float = 0.0) -> bytes:
    import torch
    from safetensors.torch import save

    return save({name: torch.full(shape, fill) for name, shape in SHAPES.items()})


# What a config.json may say of a folder whose weights would fit, with True for what is read and refused.
FIELDS: Mapping[str, Mapping[str, Any]] = {
    "rope-list": {"rope_parameters": [1]},
    "rope-text": {"rope_parameters": "x" * 1000},
    "rope-type-object": {"rope_parameters": {"rope_type": {"a": []}}},
    "theta-object": {"rope_theta": {}},
    "theta-nan": {"rope_theta": float("nan")},
    "scaling-text": {"rope_scaling": "linear"},
    "scaling-list": {"rope_scaling": [["rope_theta", 1]]},
    "scaling-number": {"rope_scaling": 8},
    "scaling-type-list": {"rope_scaling": {"type": ["default"]}},
    "eps-text": {"rms_norm_eps": "%n%n%n"},
    "eps-none": {"rms_norm_eps": None},
    "eps-list": {"rms_norm_eps": []},
    "eps-nan": {"rms_norm_eps": float("nan")},
    "eps-huge": {"rms_norm_eps": 10**400},
    "heads-0": {"num_attention_heads": 0},
    "heads-list": {"num_attention_heads": [2]},
    "heads-huge": {"num_attention_heads": 10**4000},
    "width-negative": {"hidden_size": -16},
    "width-deep": {"hidden_size": json.loads("[" * 900 + "]" * 900)},
    "width-long": {"hidden_size": "x" * 8_000_000},
    "width-terminal": {"hidden_size": "\x1b[2J\n"},
    "vocabulary-huge": {"vocab_size": 2**62},
    "type-list": {"model_type": ["llama"]},
    "type-long": {"model_type": "llama" * 1_000_000},
    "act-object": {"hidden_act": {"__reduce__": "os.system"}},
    "bias-text": {"attention_bias": "False"},
    "sliding": {"use_sliding_window": True},
    "surrogate": {"hidden_act": "\ud800"},
    "key-long": {"rope_parameters": {"rope_type": {"x" * 1_000_000: 1}}},
}
# What is of no meaning here, and is not to get one: the weights are wrong, and refused for that.
UNREAD: Mapping[str, Mapping[str, Any]] = {
    "auto-map": {"auto_map": {"AutoModelForCausalLM": "evil.Model", "AutoConfig": "evil.Config"}},
    "auto-map-away": {"auto_map": {"AutoConfig": "stranger/repository--evil.Config"}},
    "trust": {"trust_remote_code": True, "auto_map": {"AutoConfig": "evil.Config"}},
    "class": {"architectures": ["os.system"], "_name_or_path": "../../outside", "transformers_version": "x" * 100_000},
    "quantization": {"quantization_config": {"quant_method": "evil", "modules": "evil.py"}},
}


def hf_field(at: Place, name: str) -> Commands:
    folder = weights_folder(at.work, {**DESCRIBED, **{**FIELDS, **UNREAD}[name]})
    code = f"open({str(at.canary)!r}, 'w').close()\n"
    for file in ("evil.py", "__init__.py", "modeling_llama.py", "setup.py", "conftest.py"):
        (folder / file).write_text(code)
    (folder / "model.safetensors").write_bytes(at.data("another-model") if name in UNREAD else safetensors_of())
    return weights_commands(at.work, folder)


def hf_node(at: Place, words: str) -> Commands:
    """Something else than a file in the place of one; `index KIND` and `config KIND` likewise."""
    file, kind = words.split(" ")
    folder = weights_folder(at.work)
    names = {"shard": "model.safetensors", "config": "config.json", "index": "model.safetensors.index.json"}
    (folder / "model.safetensors").write_bytes(at.data("another-model"))
    make(kind, folder / names[file], at.outside)
    return weights_commands(at.work, folder)


INDEXES: Mapping[str, object] = {
    "up": {"weight_map": {"model.norm.weight": "../outside/secret.safetensors"}},
    "absolute": {"weight_map": {"model.norm.weight": "/dev/zero"}},
    "itself": {"weight_map": {"model.norm.weight": "model.safetensors.index.json"}},
    "gone": {"weight_map": {"model.norm.weight": "gone.safetensors"}},
    "zero": {"weight_map": {"model.norm.weight": "a\0.safetensors"}},
    "long": {"weight_map": {"model.norm.weight": "x" * 300 + ".safetensors"}},
    "surrogate": {"weight_map": {"model.norm.weight": "\ud800.safetensors"}},
    "number": {"weight_map": {"model.norm.weight": 1}},
    "list": {"weight_map": ["model.safetensors"]},
    "none": {"weight_map": {}},
    "missing": {"metadata": {}},
    "linked": {"weight_map": {"model.norm.weight": "linked.safetensors"}},
    "pickle": {"weight_map": {"model.norm.weight": "pytorch_model.bin"}},
    "many": {"weight_map": {f"x{at}": "model.safetensors" for at in range(200_000)}},
    "files": {"weight_map": {f"x{at}": f"model-{at}.safetensors" for at in range(100_000)}},
}


def hf_index(at: Place, name: str) -> Commands:
    folder = weights_folder(at.work)
    (folder / "model.safetensors").write_bytes(at.data("another-model"))
    (folder / "pytorch_model.bin").write_bytes(at.data("torch-zip"))
    (folder / "linked.safetensors").symlink_to(at.outside / "secret")
    (folder / "model.safetensors.index.json").write_text(json.dumps(INDEXES[name]))
    return weights_commands(at.work, folder)


def hf_pickle(at: Place, words: str) -> Commands:
    """Pickles under the names that other programs load, instead of safetensors or beside those of another model."""
    how, name = words.split(" ")
    folder = weights_folder(at.work)
    for file in ("pytorch_model.bin", "model.pt", "model.ckpt", "adapter_model.bin", "training_args.bin"):
        (folder / file).write_bytes(at.data(name))
    if how == "beside":
        (folder / "model.safetensors").write_bytes(at.data("another-model"))
    return weights_commands(at.work, folder)


def hf_values(at: Place, name: str) -> Commands:
    folder = weights_folder(at.work)
    (folder / "model.safetensors").write_bytes(safetensors_of(float(name)))
    return weights_commands(at.work, folder)[:1]  # `plan` reads no values
