"""`KEY=VALUE` by the rules of the file, laid over it in order."""

import pytest

from pretrain.config import parse, to_yaml, value_text
from tests.config.written import TEXT, config, refusal


def test_later_overrides_win() -> None:
    assert config("training.seed=2", "training.seed=3").training.seed == 3


def test_the_text_that_was_parsed_is_left_alone() -> None:
    assert config("training.seed=2") != config()
    assert config() == config()


def test_values_are_yaml() -> None:
    one = config(
        "optimizer.betas=[0.8, 0.99]",
        "telemetry.csv_log_path='a b # c.csv'",
        "model={width: 32, heads: 2, kv_heads: 1}",
    )
    assert one.optimizer.settings.betas == (0.8, 0.99)
    assert one.telemetry.csv_log_path == "a b # c.csv"
    assert (one.model.settings.width, one.model.settings.heads) == (32, 2)


def test_an_equals_sign_and_points_in_a_value() -> None:
    assert config("run.dir=runs/lr=1.5").run.dir == "runs/lr=1.5"


@pytest.mark.parametrize("folder", ["a: b", "1e3", "no #1", "~x", "[", "@", "runs/one", '"', "010"])
def test_any_text_can_be_passed_on_in_quotes(folder: str) -> None:
    assert config(f"data.train.corpus.path={value_text(folder)}").data.train["corpus"].settings.path == folder


@pytest.mark.parametrize(
    "override",
    ["data.train.more={path: more.txt}", "data.train.more.path=more.txt", "data={train: {more: {path: more.txt}}}"],
)
def test_a_domain_can_be_added(override: str) -> None:
    one = config(override)
    assert list(one.data.train) == ["corpus", "more"]
    assert one.data.train["more"].settings.path == "more.txt"
    assert one.data.train["corpus"].settings.span == (0.0, 0.9)


def test_a_domain_may_have_points_in_its_name() -> None:
    one = config(
        "data.train.wiki.en.path=a.txt", "data.train.wiki.de={path: b.txt}", "data.train.wiki.de.span=[0, 0.5]"
    )
    assert list(one.data.train) == ["corpus", "wiki.en", "wiki.de"]
    assert one.data.train["wiki.en"].settings.path == "a.txt"
    assert one.data.train["wiki.de"].settings.span == (0.0, 0.5)
    again = parse(
        to_yaml(one), "y", ["data.train.wiki.en.span=[0, 1]", "data.train.copy.path=${data.train.wiki.en.path}"]
    )
    assert again.data.train["copy"].settings.path == "a.txt"


def test_an_entry_can_be_changed() -> None:
    assert config("scheduler.scheduler_type=constant").scheduler.name == "constant"
    text = TEXT + "scheduler: {scheduler_type: cosine, scheduler_warmup_ratio: 0.1, min_lr_ratio: 0.1}"
    assert refusal("scheduler.scheduler_type=linear_warmup_then_constant", text=text) == [
        "x.yaml: scheduler.min_lr_ratio is not a setting of linear_warmup_then_constant, which override "
        "scheduler.scheduler_type=linear_warmup_then_constant chose; take the key out of x.yaml"
    ]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.seed", "expected KEY=VALUE"),
        ("", "expected KEY=VALUE"),
        ("=3", "'' is not a key"),
        ("training..seed=3", "'training..seed' is not a key"),
        ("+training.seed=3", "'+training.seed' is not a key"),
        ("--training.seed=3", "--training is not a section"),
        ("optimizer.betas[0]=0.5", "give a list as a whole"),
        ("training.seed=[1", "line 1: while parsing a flow sequence"),
        ("training.seed={a: 1, a: 2}", "line 1: key a is given twice"),
        ("training.seed=*a", "aliases"),
        ("training.seed=!!int 1", "tags"),
        ("training.seed=a: b: c", "a second `:`"),
        ("data.validation={}", "an empty mapping is merged into data.validation and changes nothing"),
        ("run.dir.x=1", "run.dir.x goes deeper than any setting"),
        ("training=3", "training must be a section"),
    ],
)
def test_refused(override: str, message: str) -> None:
    lines = refusal(override)
    assert message in lines[0]
    assert lines[0].startswith(f"override {override}: ")


def test_an_override_below_a_value() -> None:
    assert refusal("data.train.corpus.path=x", text=TEXT.replace("{source: text, span: [0.0, 0.9]}", "3"))[0] == (
        "override data.train.corpus.path=x: data.train.corpus is not a section, so it has no settings"
    )


def test_every_unreadable_override_is_listed() -> None:
    assert len(refusal("a", "b", "training.seed=[")) == 3
