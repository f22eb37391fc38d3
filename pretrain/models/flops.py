"""How many floating point operations a model takes to be trained on one position of a sequence."""

from torch import nn

from pretrain.models.attention import Attention
from pretrain.models.experts import Mixture


def flops_per_position(model: nn.Module, positions: int) -> int:
    """Return 6 N + 12 L d S of the forward and the backward pass, for each of the S = `positions` of a sequence.

    N is the parameters of the matrices: two operations forward for each, two for the gradient of its input, two for its
    own. The token embedding is looked up, so it counts only where it is the prediction head too; a table of positions
    is only added. Of a mixture of experts the router counts, and as many experts as a position is sent to. What takes
    patches in is a matrix whose input needs no gradient: 4 N for that one. Attention takes 4 d S forward and 8 d S
    backward in each of L layers of width d, masked or not: what a window or the documents hide is multiplied all the
    same. What activation checkpointing computes again is the price of memory and counts for nothing. Kaplan et al.,
    arXiv 2001.08361, section 2.1, with the attention of Chowdhery et al. (PaLM), arXiv 2204.02311, appendix B. Norms,
    rotations, the softmax and the loss are left out, as in PyTorch's own `FlopCounterMode`, which gives the same
    number.
    """
    trunk = getattr(model, "model", None)
    entry, table = getattr(trunk, "embed_patches", None), getattr(trunk, "embed_tokens", None)
    routed = {matrix for one in model.modules() if isinstance(one, Mixture) for matrix in one.experts.modules()}
    total = 0
    for module in model.modules():
        match module:
            case Mixture():
                total += 6 * (module.gate.weight.numel() + module.gate.top_k * _size(module.experts[0]))
            case nn.Linear() if module in routed:
                pass
            case nn.Linear():
                total += (4 if module is entry else 6) * module.weight.numel()
            case nn.Embedding() if module is table and getattr(model, "lm_head", None) is None:
                total += 6 * module.weight.numel()
            case Attention():
                total += 12 * module.o_proj.in_features * positions
    return total


def active_parameters(model: nn.Module) -> int:
    """Return how many parameters one position meets: all but those of the experts that it is not sent to."""
    idle = sum(
        (module.gate.experts - module.gate.top_k) * _size(module.experts[0])
        for module in model.modules()
        if isinstance(module, Mixture)
    )
    return _size(model) - idle


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
