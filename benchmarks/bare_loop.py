"""What the loop is measured against: the plain PyTorch loop that a person writes first, without any of its care."""

import time

import torch
import torch.nn.functional as F

from pretrain.build import build_data, build_run
from pretrain.config import RunConfig


class BareLoop:
    """Next-token training of the model, the batches and the learning rates of `config`, all read in advance.

    Fused AdamW, `clip_grad_norm_` over all tensors at once and one `.item()` a step. `losses` holds them all.
    """

    def __init__(self, config: RunConfig) -> None:
        built = build_run(config, build_data(config), torch.device("cpu"))
        assert config.training.gradient_accumulation_steps == 1
        self.model, self.optimizer = built.state.model, built.state.optimizer
        self.losses: list[float] = []
        self._max_norm = config.training.grad_clip_max_norm or float("inf")
        steps = range(config.training.max_steps)
        self._batches = [built.state.loader.next_step().micro_batches[0].samples for _ in steps]
        self._rates = [built.learning_rate(step) for step in steps]
        built.state.loader.close()

    def run(self, steps: int) -> float:
        """Train `steps` steps more and return the seconds that they took."""
        parameters = list(self.model.parameters())
        begun = time.perf_counter()
        for step in range(len(self.losses), len(self.losses) + steps):
            for group in self.optimizer.param_groups:
                group["lr"] = self._rates[step]
            self.optimizer.zero_grad(set_to_none=True)
            loss = self.forward(self._batches[step])
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(parameters, self._max_norm, foreach=True)
            self.optimizer.step()
            self.losses.append(loss.item())
        return time.perf_counter() - begun

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the mean loss over a batch of windows."""
        logits = self.model(tokens[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
