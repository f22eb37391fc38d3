"""The same weights give the same logits as `transformers`, for every feature that has a class there."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers

from pretrain.batch import InputSpec
from pretrain.models import DecoderSettings, ExpertSettings, build_decoder

# Of its own code and that of what it imports.
pytestmark = pytest.mark.filterwarnings("ignore")

VOCABULARY, POSITIONS = 37, 12
SMALL = DecoderSettings(width=32, heads=4, kv_heads=2, ffn_width=48, init_std=0.2)
IDS = torch.randint(0, VOCABULARY, (3, POSITIONS), generator=torch.Generator().manual_seed(2))


@dataclass(frozen=True)
class Case:
    """A class of transformers by the begin of its name, the settings that mean the same, and what it needs besides."""

    name: str
    settings: dict[str, Any]
    config: dict[str, Any]


CASES = [
    Case("Llama", {}, {}),
    Case("Llama", {"kv_heads": 4, "rope_base": 100.0}, {}),
    Case("Llama", {"kv_heads": 1, "tie_embeddings": False}, {}),
    Case("Qwen3", {"qk_norm": True}, {}),
    Case("Qwen3", {"qk_norm": True, "sliding_window": 3}, {"use_sliding_window": True, "max_window_layers": 0}),
    Case("Mistral", {"sliding_window": 5}, {}),
    Case("Arcee", {"activation": "squared_relu"}, {"hidden_act": "relu2"}),
    Case("Arcee", {"activation": "gelu"}, {"hidden_act": "gelu"}),
]


def built(settings: dict[str, Any]) -> tuple[Any, DecoderSettings]:
    chosen = replace(SMALL, **settings)
    model = build_decoder(chosen, InputSpec("tokens", VOCABULARY), POSITIONS, 1)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5, generator=generator)
    return model, chosen


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name}-{case.settings}")
def test_the_weights_load_by_name_and_give_the_same_logits(case: Case) -> None:
    model, settings = built(case.settings)
    shape = {
        "vocab_size": VOCABULARY,
        "hidden_size": settings.width,
        "num_hidden_layers": settings.layers,
        "num_attention_heads": settings.heads,
        "num_key_value_heads": settings.kv_heads,
        "head_dim": settings.width // settings.heads,
        "intermediate_size": settings.ffn_width,
        "max_position_embeddings": POSITIONS,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": settings.rope_base},
        "tie_word_embeddings": settings.tie_embeddings,
        "attn_implementation": "eager",
    }
    if settings.sliding_window is not None:
        shape["sliding_window"] = settings.sliding_window
    config = getattr(transformers, f"{case.name}Config")(**shape, **case.config)
    other = getattr(transformers, f"{case.name}ForCausalLM")(config).eval()
    missing, unexpected = other.load_state_dict(model.state_dict(), strict=False)
    assert (missing, unexpected) == (["lm_head.weight"] if settings.tie_embeddings else [], [])
    with torch.no_grad():
        torch.testing.assert_close(model(IDS), other(IDS).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_experts_load_from_a_published_layout_and_give_the_same_logits(top_k: int, tmp_path: Path) -> None:
    """A file with the names of ours is one that `from_pretrained` of Qwen3-MoE takes, nothing missing or left."""
    experts = ExpertSettings(6, top_k=top_k, width=24, balance=0.0)
    model, settings = built({"qk_norm": True, "experts": experts, "tie_embeddings": False})
    config = transformers.Qwen3MoeConfig(
        vocab_size=VOCABULARY,
        hidden_size=settings.width,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.kv_heads,
        head_dim=settings.width // settings.heads,
        moe_intermediate_size=experts.width,
        num_experts=experts.count,
        num_experts_per_tok=top_k,
        norm_topk_prob=top_k > 1,
        max_position_embeddings=POSITIONS,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": settings.rope_base},
        tie_word_embeddings=False,
    )
    config.save_pretrained(tmp_path)
    tensors = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    other, found = transformers.Qwen3MoeForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not any(found[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    with torch.no_grad():
        torch.testing.assert_close(model(IDS), other.eval()(IDS).logits, rtol=1e-5, atol=1e-5)


def test_learned_positions_layernorm_and_gelu_are_gpt2s_without_biases() -> None:
    model, settings = built({"norm": "layernorm", "activation": "gelu", "positions": "learned", "kv_heads": 4})
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=settings.width,
        n_layer=settings.layers,
        n_head=settings.heads,
        n_inner=settings.ffn_width,
        n_positions=POSITIONS,
        layer_norm_epsilon=1e-6,
        activation_function="gelu",
        attn_implementation="eager",
    )
    other = transformers.GPT2LMHeadModel(config).eval()
    own = dict(model.named_parameters())
    given = {
        "transformer.wte.weight": own["model.embed_tokens.weight"],
        "transformer.wpe.weight": own["model.embed_positions.weight"],
        "transformer.ln_f.weight": own["model.norm.weight"],
    }
    for layer in range(settings.layers):
        here, there = f"model.layers.{layer}", f"transformer.h.{layer}"
        attention = [own[f"{here}.self_attn.{kind}_proj.weight"] for kind in "qkv"]
        given |= {
            f"{there}.ln_1.weight": own[f"{here}.input_layernorm.weight"],
            f"{there}.ln_2.weight": own[f"{here}.post_attention_layernorm.weight"],
            f"{there}.attn.c_attn.weight": torch.cat(attention).T,
            f"{there}.attn.c_proj.weight": own[f"{here}.self_attn.o_proj.weight"].T,
            f"{there}.mlp.c_fc.weight": own[f"{here}.mlp.up_proj.weight"].T,
            f"{there}.mlp.c_proj.weight": own[f"{here}.mlp.down_proj.weight"].T,
        }
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            if name in given:
                parameter.copy_(given.pop(name))
            else:
                assert name.endswith("bias")
                parameter.zero_()
        assert not given
        torch.testing.assert_close(model(IDS), other(IDS).logits, rtol=1e-5, atol=1e-5)
