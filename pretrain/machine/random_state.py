"""The generators whose position a resumed run must have back."""

import torch

GeneratorStates = dict[str, torch.Tensor]


def capture(device: torch.device) -> GeneratorStates:
    """Return the state of every generator that training draws from, as uint8 tensors on the CPU."""
    states = {"rng.cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states[f"rng.cuda.{device.index or 0}"] = torch.cuda.get_rng_state(device)
    return states


def restore(states: GeneratorStates, device: torch.device) -> None:
    """Put the generators back where `capture` saw them."""
    torch.set_rng_state(states["rng.cpu"])
    name = f"rng.cuda.{device.index or 0}"
    if device.type == "cuda" and name in states:
        torch.cuda.set_rng_state(states[name], device)
