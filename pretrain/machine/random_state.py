"""The generators whose position a resumed run must have back."""

import re

import torch

GeneratorStates = dict[str, torch.Tensor]

_PREFIX = "rng."
_OF_A_GPU = re.compile(r"rng\.cuda\.[0-9]+")


def capture(device: torch.device) -> GeneratorStates:
    """Return the state of every generator that training draws from, as uint8 tensors on the CPU."""
    states = {"rng.cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states[_name(device)] = torch.cuda.get_rng_state(device)
    return states


def restore(states: GeneratorStates, device: torch.device) -> None:
    """Put the generators back where `capture` saw them."""
    torch.set_rng_state(states["rng.cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[_name(device)], device)


def of_states(tensors: GeneratorStates) -> GeneratorStates:
    """Return those of the tensors of a checkpoint that are states of generators."""
    return {name: tensor for name, tensor in tensors.items() if name.startswith(_PREFIX)}


def elsewhere(states: GeneratorStates, device: torch.device) -> GeneratorStates:
    """Return the states of generators that training on `device` does not draw from."""
    here = {"rng.cpu", _name(device)} if device.type == "cuda" else {"rng.cpu"}
    return {name: state for name, state in states.items() if name not in here}


def is_of_a_gpu(name: str) -> bool:
    """Whether a tensor of this name is the state of a generator that a run on another device has not."""
    return _OF_A_GPU.fullmatch(name) is not None


def _name(device: torch.device) -> str:
    return f"rng.cuda.{device.index or 0}"
