"""Random valid configurations, from the settings classes themselves."""

import typing
from typing import Any

from hypothesis import strategies as st

from pretrain.config.canonical import text_of
from pretrain.config.settings import (
    NAMED,
    SECTIONS,
    SOURCE,
    NamedSection,
    Setting,
    groups_of,
    plain_sections,
    settings_of,
)
from pretrain.policy.fault_plan import KINDS
from pretrain.telemetry.trackers import TRACKERS

TRICKY = [
    *("no", "y", "true", "null", "~", "010", "0x1f", "1e3", ".5", "1_000", ".nan", "12:30", "2026-01-01"),
    *("- a", "#x", "a: b", "a b ", "=", "<<", "...", "---", "'", '"', "\\", "{", "@", "%", "!x", "&"),
    *("é", "日本", "\U0001f4e1", "\u2028", "\xa0", "\ufeff"),
]
TEXTS = st.one_of(
    st.sampled_from(TRICKY),
    st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=12).filter(
        lambda text: "${" not in text and text != "???"
    ),
)
PATHS = st.builds("f{}".format, TEXTS.filter(lambda text: "/" not in text))
DOMAINS = st.one_of(
    st.sampled_from(["no", "010", "1e3", "null", "true", "a.b", "-", "_", "1"]),
    st.from_regex(r"[a-z0-9_-]{1,6}", fullmatch=True),
).filter(lambda name: name != "mean")


def value_of(setting: Setting) -> st.SearchStrategy[Any]:
    """What a setting may hold, as plain values."""
    options = typing.get_args(setting.annotation) if type(None) in typing.get_args(setting.annotation) else ()
    kinds = [one for one in options if one is not type(None)] or [setting.annotation]
    found = _scalar(kinds[0], setting)
    return st.one_of(st.none(), found) if options else found


def _scalar(kind: Any, setting: Setting) -> st.SearchStrategy[Any]:
    limits = setting.limits
    if typing.get_origin(kind) in (list, tuple):
        inner = _scalar(typing.get_args(kind)[0], setting)
        if kind == tuple[str, ...]:
            return st.lists(inner, min_size=1, max_size=3)
        length = len(typing.get_args(kind)) if typing.get_origin(kind) is tuple else len(setting.default)
        return st.lists(inner, min_size=length, max_size=length).map(sorted)
    if "choices" in limits:
        return st.sampled_from(limits["choices"])
    if kind is bool:
        return st.booleans()
    if kind is str:
        return PATHS
    if kind is int:
        return st.integers(limits.get("at_least", 0), limits.get("at_most", 2**62))
    return st.floats(
        limits.get("at_least", limits.get("above")),
        limits.get("at_most", limits.get("below")),
        exclude_min="above" in limits,
        exclude_max="below" in limits,
        allow_nan=False,
        allow_infinity=False,
    )


@st.composite
def _settings(draw: Any, cls: type[Any]) -> dict[str, Any]:
    own = {
        name: draw(value_of(setting))
        for name, setting in settings_of(cls).items()
        if not name.startswith("scheduler_warm")
    }
    for name, group in groups_of(cls).items():
        own[name] = None if group.is_optional and draw(st.booleans()) else draw(_settings(group.settings))
    return own


@st.composite
def _faults(draw: Any, guarded: bool) -> list[str]:
    """Faults to inject, each kind once, so that none is there twice."""
    found = []
    kinds = [kind for kind in KINDS if guarded or kind != "temperature"]
    for kind in draw(st.lists(st.sampled_from(kinds), unique=True)):
        value = draw(st.sampled_from(["x8", "x0.5", "x1e20"])) if kind in ("huge_grad", "temperature") else ""
        found.append(f"{kind}@{draw(st.integers(0, 10**9))}{value}")
    return found


@st.composite
def _entry(draw: Any, section: NamedSection, names: list[str]) -> dict[str, Any]:
    name = draw(st.sampled_from(names))
    return {section.key: name, **draw(_settings(section.table[name].settings))}


def _domains(draw: Any, task: str, least: int) -> dict[str, Any]:
    sources = ["text"] if task == "text" else ["iq", "synthetic-iq"]
    found = draw(st.dictionaries(DOMAINS, _entry(SOURCE, sources), min_size=least, max_size=3))
    for settings in found.values():
        if not settings["span"][0] < settings["span"][1]:
            settings["span"] = [0.25, 0.75]
    return dict(found)


def _fit_optimizer(optimizer: dict[str, Any]) -> None:
    """Take out what the optimizer that was drawn does not have, and momentum that another key needs."""
    kept = ("betas", "eps") if optimizer["optimizer_class"] != "muon" else ()
    for role in optimizer["groups"].values():
        role |= {key: None for key in ("betas", "eps") if key not in optimizer or key not in kept}
    if optimizer.get("momentum") == 0:
        optimizer["nesterov"] = False


def _fit_experts(model: dict[str, Any], monitors: dict[str, Any]) -> None:
    """No more experts at a position than there are, and no look at those of a model that has none."""
    if model["experts"] is None:
        monitors["experts"]["every_n_steps"] = 0
    else:
        model["experts"]["top_k"] = min(model["experts"]["top_k"], model["experts"]["count"])


def _fit_groups(groups: dict[str, Any], model: dict[str, Any], task: str) -> None:
    """Nothing for a router or a head that the model does not have."""
    own = {"lr_multiplier": 1.0, "weight_decay": None, "betas": None, "eps": None}
    if model["experts"] is None:
        groups["router"] = own
    if task == "text" and model["tie_embeddings"]:
        groups["head"] = own


@st.composite
def texts(draw: Any) -> str:
    """The text of a configuration that is valid, keys that depend on each other made to fit."""
    tree: dict[str, Any] = {name: draw(_settings(cls)) for name, cls in plain_sections().items()}
    for section, chooser in NAMED.items():
        tree[section] = draw(_entry(chooser, list(chooser.table)))
    task = tree["task"]["name"]
    tree["data"]["train"] = _domains(draw, task, 1)
    tree["data"]["validation"] = _domains(draw, task, 0)
    if "patch_samples" in tree["task"]:
        tree["task"]["patch_samples"] %= 2**10
        tree["task"]["patch_samples"] += 1
    tree["data"]["sequence_length"] = 2 * draw(st.integers(1, 9)) * tree["task"].get("patch_samples", 1)
    training = tree["training"]
    for key in ("batch_size", "gradient_accumulation_steps"):
        training[key] = 1 + training[key] % 2**15
    positions = training["batch_size"] * training["gradient_accumulation_steps"] * tree["data"]["sequence_length"]
    training["max_steps"] = min(training["max_steps"], (2**63 - 1) // positions)
    tree["telemetry"]["trackers"] = {
        name: draw(_settings(entry.settings)) for name, entry in TRACKERS.items() if draw(st.booleans())
    }
    if task == "iq":
        tree["data"]["document_mask"], tree["model"]["logit_soft_cap"] = False, None
    tree["training"]["use_amp"] = None
    thermal = tree["thermal"]
    names = [f"gpu_temp_{name}_threshold_c" for name in ("resume", "pause", "critical")]
    thermal |= zip(names, sorted(draw(st.sets(st.floats(2, 149), min_size=3, max_size=3))), strict=True)
    if thermal["switch_on_thermal"]:
        thermal["gpu_temp_guard"] = True
    if thermal["gpu_temp_guard"]:
        tree["telemetry"]["gpu_metrics_backend"] = "nvml"
    tree["faults"]["inject"] = draw(_faults(thermal["gpu_temp_guard"]))
    kv_heads, groups, half = draw(st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 99)))
    tree["model"] |= {"kv_heads": kv_heads, "heads": kv_heads * groups, "width": 2 * kv_heads * groups * half}
    _fit_experts(tree["model"], tree["monitors"])
    tree["validation"]["rank_by"] = draw(
        st.sampled_from(["mean", *(tree["data"]["validation"] or tree["data"]["train"])])
    )
    tree["telemetry"]["csv_log_path"] = tree["telemetry"]["csv_log_path"].replace("\\", "_") + ".csv"
    _fit_optimizer(tree["optimizer"])
    _fit_groups(tree["optimizer"]["groups"], tree["model"], task)
    if tree["optimizer"].get("lr_scaling") == "none":
        tree["optimizer"]["base_batch_size"] = None
    elif "base_batch_size" in tree["optimizer"]:
        tree["optimizer"]["base_batch_size"] = draw(st.integers(1, 2**40))
    if tree["training"]["gradient_accumulation_steps"] == 1:
        tree["training"]["batch_warmup_samples"] = None
    if task != "text":
        tree["init"]["from_huggingface"] = None
    if tree["init"]["from_checkpoint"] is not None:
        tree["init"]["from_huggingface"] = None
    optimizer = tree["optimizer"]
    if optimizer["optimizer_class"] not in ("adamw", "lion", "muon") or optimizer.get("use_galore"):
        tree["model"]["parametrization"] = "standard"
    if tree["model"]["experts"] is not None:
        tree["model"]["parametrization"] = "standard"
    if "decay_ratio" in tree["scheduler"]:
        tree["scheduler"] |= {"decay_ratio": 0.1, "scheduler_warmup_ratio": draw(st.floats(0, 0.9))}
    return text_of({section: tree[section] for section in SECTIONS})
