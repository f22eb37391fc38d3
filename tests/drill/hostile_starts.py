"""What a stranger may give to `replay` and to `init`: an incident, the checkpoints on its way, and weights."""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pretrain.evidence.shards import content_sha256
from tests.drill.hostile_content import ARCHIVES, BOMBS, CONFIGS, HEADS, PICKLES
from tests.drill.hostile_incidents import READ, REFUSED
from tests.drill.hostile_places import LINKS, Commands, Place, forge, make
from tests.drill.hostile_weights import (
    FIELDS,
    INDEXES,
    UNREAD,
    hf_field,
    hf_index,
    hf_node,
    hf_pickle,
    hf_values,
    safetensors_of,
    weights_commands,
    weights_folder,
)
from tests.evidence.attempts import rewrite

SHARD, RECORD, NEWEST = "shard_00000.safetensors", "checkpoint.json", "checkpoints/step_00000003"
INCIDENT = "incidents/incident_0001.json"
FEW = ("pickle-system", "torch-zip", "deep", "wide", "huge-integer", "nan")


def _replay(attempt: Path) -> Commands:
    return [["replay", "--incident", attempt / INCIDENT]]


def _incident(at: Place, name: str) -> Commands:
    """The incident itself."""
    attempt = at.copy()
    (attempt / INCIDENT).write_bytes(at.data(name))
    return _replay(attempt)


def _incident_field(at: Place, name: str) -> Commands:
    """One field of it, sealed as a forger would."""
    attempt = at.copy()
    record = json.loads((attempt / INCIDENT).read_bytes())
    {**REFUSED, **READ}[name](record)
    (attempt / INCIDENT).write_bytes(rewrite(attempt / INCIDENT, record))
    return _replay(attempt)


def _incident_node(at: Place, kind: str) -> Commands:
    """Something else than a file in its place; `elsewhere`: a link to another run's."""
    attempt = at.copy()
    other = shutil.copytree(at.work / "run", at.work / "other") / "attempts/0001"
    if kind == "elsewhere":
        (attempt / INCIDENT).unlink()
        (attempt / INCIDENT).symlink_to(other / INCIDENT)
    elif kind == "folder-elsewhere":
        shutil.rmtree(attempt / "incidents")
        (attempt / "incidents").symlink_to(other / "incidents", target_is_directory=True)
    else:
        make(kind, attempt / INCIDENT, at.outside)
    return _replay(attempt)


def _replay_file(at: Place, words: str) -> Commands:
    """A file of a stranger that a replay reads on its way to the step: of checkpoints that of each."""
    file, name = words.split(" ")
    attempt = at.copy()
    for path in attempt.glob(file) if "*" in file else (attempt / file,):
        if name in LINKS:
            make(name, path, at.outside)
        else:
            path.write_bytes(CONFIGS[name](at.canary) if file == "config.yaml" else at.data(name))
    return _replay(attempt)


def seal_shard(place: Path, data: bytes, name: str = SHARD) -> None:
    """Put a shard into a checkpoint, and seal its record over it."""
    (place / SHARD).unlink()
    (place / name).write_bytes(data)
    bound = {"path": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (place / RECORD).write_bytes(rewrite(place / RECORD, {"files": [bound]}))


def _replay_shard(at: Place, name: str) -> Commands:
    attempt = at.copy()
    for place in attempt.glob("checkpoints/*"):
        seal_shard(place, at.data(name))
    return _replay(attempt)


def _start_shard(at: Place, name: str) -> Commands:
    place = at.copy() / NEWEST
    seal_shard(place, at.data(name))
    return at.begin(place)


def _start_record(at: Place, name: str) -> Commands:
    place = at.copy() / NEWEST
    (place / RECORD).write_bytes(at.data(name))
    return at.begin(place)


def _start_path(at: Place, name: str) -> Commands:
    """The one file that its record names lies outside."""
    place = at.copy() / NEWEST
    path = {"up": "../../../../../outside/secret", "absolute": str(at.outside / "secret"), "linked": "link/secret"}[
        name
    ]
    if name == "linked":
        (place / "link").symlink_to(at.outside, target_is_directory=True)
    size, digest = (at.outside / "secret").stat().st_size, hashlib.sha256((at.outside / "secret").read_bytes())
    bound = {"path": path, "bytes": size, "sha256": digest.hexdigest()}
    (place / RECORD).write_bytes(rewrite(place / RECORD, {"files": [bound]}))
    return at.begin(place)


def _start_node(at: Place, words: str) -> Commands:
    kind, file = words.split(" ")
    place = at.copy() / NEWEST
    make(kind, place / file, at.outside)
    return at.begin(place)


def _start_beside(at: Place, words: str) -> Commands:
    """What lies beside a checkpoint that is whole: the settings that it was trained with, of a stranger."""
    file, name = words.split(" ")
    attempt = at.copy()
    if name in LINKS:
        make(name, attempt / file, at.outside)
    else:
        (attempt / file).write_bytes(CONFIGS[name](at.canary) if file == "config.yaml" else at.data(name))
    return at.begin(attempt / NEWEST)[1:]  # it may be told of rather than refused, and then `train` would train


def _lineage(at: Place, how: str) -> Commands:
    """What an attempt says that it goes on from, or is, leads whoever follows it in a circle."""
    attempt = at.copy()
    parent = {"kind": "checkpoint", "record_sha256": "0" * 64}
    if how == "itself":
        forge(attempt, parent={**parent, "attempt": 1})
    elif how == "later":
        forge(attempt, parent={**parent, "attempt": 10**9})
    elif how == "each-other":
        forge(shutil.copytree(attempt, attempt.with_name("0002")), attempt=2, parent={**parent, "attempt": 1})
        forge(attempt, parent={**parent, "attempt": 2})
    else:
        attempt = attempt.rename(attempt.with_name(how))
    run = attempt.parent.parent
    return [["verify-manifest", run], ["resume", "--attempt", run], *at.begin(run), *_replay(attempt)]


def _torch(at: Place, words: str) -> Commands:
    """A file of torch in a checkpoint folder: instead of its shard, or alone, as other programs leave it."""
    how, name = words.split(" ")
    attempt = at.copy()
    for place in attempt.glob("checkpoints/*"):
        if how == "bound":
            seal_shard(place, at.data(name), "model.pt")
        elif how == "instead":
            seal_shard(place, at.data(name))
        else:
            (place / "model.pt").write_bytes(at.data(name))
            (place / RECORD).unlink()
            (place / SHARD).unlink()
    place = attempt / NEWEST
    met: Commands = [["inspect-checkpoint", place], ["verify-manifest", place], *at.begin(place), *_replay(attempt)]
    return [*met, ["resume", "--attempt", attempt]]  # last, for it may begin a child


def not_finite(place: Path, value: float) -> None:
    """Put a number that is none into a weight of a checkpoint, and make every digest right again."""
    import torch
    from safetensors.torch import load

    data = bytearray((place / SHARD).read_bytes())
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    first = min(one for one in header if one.startswith("model."))
    start = 8 + length + header[first]["data_offsets"][0]
    data[start : start + 4] = torch.tensor(value).numpy().tobytes()
    rows = {}
    for tensor_name, tensor in load(bytes(data)).items():
        dtype, shape = header[tensor_name]["dtype"], tuple(header[tensor_name]["shape"])
        raw = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
        rows[tensor_name] = (dtype, shape, hashlib.sha256(raw).hexdigest())
    seal_shard(place, bytes(data))
    (place / RECORD).write_bytes(rewrite(place / RECORD, {"content_sha256": content_sha256(rows)}))


def _weights_nan(at: Place, name: str) -> Commands:
    attempt = at.copy()
    for place in attempt.glob("checkpoints/*"):
        not_finite(place, float(name))
    return [*at.begin(attempt / NEWEST, "faults.inject=[]")[:1], ["resume", "--attempt", attempt]]


def _whole(at: Place, what: str) -> Commands:
    """Nothing of a stranger: what is refused elsewhere is refused for what it is."""
    attempt = at.copy()
    if what == "replay":
        return _replay(attempt)
    if what == "checkpoint":
        return at.begin(attempt / NEWEST)[1:]
    folder = weights_folder(at.work)
    (folder / "model.safetensors").write_bytes(safetensors_of())
    return weights_commands(at.work, folder)[1:]


STARTS: Mapping[str, tuple[Callable[[Place, str], Commands], Sequence[str]]] = {
    "whole": (_whole, ("replay", "checkpoint", "weights")),
    "incident": (_incident, (*PICKLES, *BOMBS, "zip-bomb", "torch-gadget")),
    "incident-field": (_incident_field, (*REFUSED, *READ)),
    "incident-node": (_incident_node, (*LINKS, "elsewhere", "folder-elsewhere")),
    "replay-shard": (_replay_shard, (*PICKLES, *HEADS)),
    "replay-file": (
        _replay_file,
        (
            *(f"checkpoints/*/{RECORD} {name}" for name in (*FEW, *LINKS)),
            *(f"checkpoints/*/{SHARD} {name}" for name in LINKS),
            *(f"environment.json {name}" for name in (*FEW, *LINKS)),
            *(f"manifest.json {name}" for name in FEW),
            *(f"config.yaml {name}" for name in ("tag-system", "anchor-bomb", "deep", "environment", *LINKS)),
        ),
    ),
    "start-shard": (_start_shard, (*PICKLES, *HEADS, "nothing", "zeros")),
    "start-record": (_start_record, (*PICKLES, *BOMBS)),
    "start-path": (_start_path, ("up", "absolute", "linked")),
    "start-node": (_start_node, [f"{kind} {file}" for kind in LINKS for file in (RECORD, SHARD)]),
    "start-beside": (
        _start_beside,
        (
            *(f"environment.json {name}" for name in (*FEW, *LINKS)),
            *(f"config.yaml {name}" for name in ("tag-system", "tag-new", "anchor-bomb", "growing", *LINKS)),
        ),
    ),
    "lineage": (_lineage, ("itself", "later", "each-other", "0003", "999999999")),
    "torch": (_torch, [f"{how} {name}" for how in ("bound", "instead", "alone") for name in ARCHIVES]),
    "weights": (_weights_nan, ("nan", "inf", "-inf")),
    "hf-field": (hf_field, (*FIELDS, *UNREAD)),
    "hf-node": (hf_node, [f"{file} {kind}" for file in ("shard", "config", "index") for kind in LINKS]),
    "hf-index": (hf_index, tuple(INDEXES)),
    "hf-pickle": (hf_pickle, [f"{how} {name}" for how in ("alone", "beside") for name in (*ARCHIVES, "torch-row")]),
    "hf-values": (hf_values, ("nan", "inf", "-inf")),
}
"""How each kind of point is made, and the names of its points."""


def codes_of(kind: str, name: str, command: object) -> tuple[int, ...]:
    """Return the exit codes that a command may end with: where nothing is wrong that it reads, it may do its work."""
    if kind == "whole":
        return (0,)
    if kind == "weights" and command == "resume":
        return (4,)
    if kind == "torch" and name.startswith("alone ") and command == "resume":
        return (0,)  # what has no record is no checkpoint, and the run begins again
    if (kind, name) == ("hf-node", "shard sparse"):
        return (2, 3, 9)  # it is mapped before its head is read, and the addresses of a call are limited
    if (kind == "incident-field" and name in READ) or kind == "start-beside":
        return (0, 2, 3)
    return (2, 3)
