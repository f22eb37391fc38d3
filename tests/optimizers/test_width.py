"""Rates under muP: by role and optimizer, decay that does not change with the width, and who is refused."""

from pathlib import Path
from typing import Any

import pytest

from pretrain.evidence.checkpoint import folder_of, read_record
from pretrain.optimizers import OPTIMIZERS, for_width
from tests.config.written import config, refusal
from tests.optimizers.parts import HIDDEN, ROLES, parameters
from tests.tiny import go_on, tiny, train

MUP = "model.parametrization=mup"
# What the rate of a hidden matrix is multiplied by at 4 times the base width.
SHARES = {"adamw": 1 / 4, "lion": 1 / 4, "muon": 1 / 2}


def groups_by_name(name: str, ratio: float, **given: Any) -> dict[str, dict[str, Any]]:
    settings = OPTIMIZERS[name].settings(**given)
    optimizer = OPTIMIZERS[name].build(for_width(settings, ratio), parameters(), ROLES)
    return {one: group for group in optimizer.param_groups for one in group["param_names"]}


@pytest.mark.parametrize("name", SHARES)
def test_rates_by_role_at_two_widths(name: str) -> None:
    base, wide = (groups_by_name(name, ratio, lr=0.1) for ratio in (1.0, 4.0))
    for part, role in ROLES.items():
        share = {"attention": SHARES[name], "feed_forward": SHARES[name], "router": 1 / 4}.get(role, 1.0)
        assert base[part]["lr_multiplier"] == 1, part
        assert wide[part]["lr_multiplier"] == pytest.approx(share), part
        assert wide[part]["lr"] == pytest.approx(0.1 * share), part
        # What a step takes off is rate times decay.
        before, after = (group[part]["lr"] * group[part]["weight_decay"] for group in (base, wide))
        assert after == pytest.approx(before), part
    assert {ROLES[part] for part in HIDDEN} == {"attention", "feed_forward"}


def test_what_the_config_gives_a_role_is_multiplied() -> None:
    settings = OPTIMIZERS["adamw"].settings(weight_decay=0.1)
    groups = config("optimizer.groups.attention.lr_multiplier=0.5", "optimizer.groups.attention.weight_decay=0.2")
    own = for_width(groups.optimizer.settings, 4.0).groups.attention
    assert (own.lr_multiplier, own.weight_decay) == (0.125, 0.8)
    assert for_width(settings, 4.0).groups.head == settings.groups.head


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_ratio_of_one_changes_nothing(name: str) -> None:
    settings = OPTIMIZERS[name].settings()
    assert for_width(settings, 1.0) is settings


@pytest.mark.parametrize("name", sorted({*OPTIMIZERS} - {*SHARES}))
def test_an_optimizer_whose_exponents_are_not_known_is_refused(name: str) -> None:
    said = "\n".join(refusal(MUP, f"optimizer.optimizer_class={name}"))
    assert f"model.parametrization: how the learning rates of {name} follow the width is not known here" in said
    assert "take adamw, lion or muon" in said
    config(f"optimizer.optimizer_class={name}")


def test_galore_is_refused() -> None:
    said = "\n".join(refusal(MUP, "optimizer.use_galore=true"))
    assert "optimizer.use_galore: how the learning rates of GaLore follow the width is not known here" in said


@pytest.mark.parametrize("name", SHARES)
def test_a_run_at_the_base_width_is_the_standard_one_bit_for_bit(tmp_path: Path, name: str) -> None:
    content = []
    for parametrization in ("standard", "mup"):
        found = tiny(
            tmp_path,
            "text",
            f"model.parametrization={parametrization}",
            "model.mup_base_width=16",
            f"optimizer.optimizer_class={name}",
            "training.max_steps=4",
            run=parametrization,
        )
        assert train(found).verdict == "done"
        content.append(read_record(folder_of(tmp_path / parametrization / "attempts" / "0001", 4)).content_sha256)
    assert content[0] == content[1]


@pytest.mark.parametrize("name", SHARES)
def test_a_resumed_run_above_the_base_width_comes_to_the_same_bytes(tmp_path: Path, name: str) -> None:
    words = (MUP, "model.mup_base_width=4", f"optimizer.optimizer_class={name}", "training.max_steps=8")
    assert train(tiny(tmp_path, "text", *words, run="whole")).verdict == "done"
    assert train(tiny(tmp_path, "text", *words, run="cut"), stop_after=5).verdict == "interrupted"
    assert go_on(tmp_path / "cut").verdict == "done"
    whole, cut = (
        read_record(folder_of(tmp_path / run / "attempts" / number, 8))
        for run, number in (("whole", "0001"), ("cut", "0002"))
    )
    assert whole == cut
