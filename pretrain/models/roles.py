"""Which part of a model each parameter belongs to, so that an optimizer can treat the parts differently."""

from torch import nn

_PREFIXES = (
    ("embed_", "embeddings"),
    ("lm_head", "head"),
    ("router", "router"),
    ("self_attn", "attention"),
    ("mlp", "feed_forward"),
)
# The name that published mixtures give their router; a whole part, as `gate_proj` is of a feed-forward layer.
_ROUTER = "gate"


def roles(model: nn.Module) -> dict[str, str]:
    """Return embeddings, norms, attention, feed_forward, router or head for every parameter of `model` by its name.

    All with less than two dimensions, biases too, are norms. A head that is tied to the embedding is the embedding's
    parameter, and has its role. Raises ValueError for a parameter whose part is not known here.
    """
    return {name: _role(name, parameter) for name, parameter in model.named_parameters()}


def _role(name: str, parameter: nn.Parameter) -> str:
    if parameter.dim() < 2:
        return "norms"
    parts = name.split(".")
    if _ROUTER in parts:
        return "router"
    for prefix, role in _PREFIXES:
        if any(part.startswith(prefix) for part in parts):
            return role
    known = ", ".join(prefix for prefix, _ in _PREFIXES)
    raise ValueError(f"{name}: expected a part that begins with {known}; give it a role in pretrain/models/roles.py")
