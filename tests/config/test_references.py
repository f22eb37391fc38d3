"""`${section.key}`, and what else a dollar sign is refused for."""

import pytest

from pretrain.config import to_yaml
from tests.config.written import IQ, TEXT, config, refusal


def test_a_reference_takes_value_and_type() -> None:
    one = config("training.seed=${training.max_steps}", "validation.batch_size=${training.batch_size}")
    assert (one.training.seed, one.validation.batch_size) == (20, 16)
    assert "$" not in to_yaml(one)


def test_references_to_defaults_to_lists_and_through_references() -> None:
    one = config(
        "data.validation.corpus.path=${data.train.corpus.path}",
        "data.train.corpus.path=${run.dir}",
        "data.validation.corpus.span=${data.train.corpus.span}",
        "training.threads=${model.layers}",
    )
    assert one.data.validation["corpus"].settings.path == "runs/x"
    assert one.data.validation["corpus"].settings.span == (0.0, 0.9)
    assert one.training.threads == 2


def test_references_inside_text_and_lists() -> None:
    one = config(
        "run.dir=runs/${model.name}-${training.seed}-${optimizer.lr}", "optimizer.betas=['${optimizer.eps}', 0.9]"
    )
    assert one.run.dir == "runs/decoder-1-0.003"
    assert one.optimizer.settings.betas == (1e-8, 0.9)


def test_a_name_may_be_a_reference() -> None:
    one = config("data.train.more={source: '${data.train.air.source}', path: b.cu8}", text=IQ)
    assert one.data.train["more"].name == "iq"
    assert config("data.train.more={source: '${task.name}'}").data.train["more"].name == "text"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.seed=${training.sead}", "which is not a setting; did you mean ${training.seed}?"),
        ("training.seed=${training}", "refers to ${training}, which is not a setting"),
        ("training.seed=${}", "refers to ${}, which is not a setting"),
        ("training.seed=${.max_steps}", "refers to ${.max_steps}, which is not a setting"),
        ("run.dir=${oc.env:HOME}", "run.dir asks for the resolver oc.env (${oc.env:HOME})"),
        ("run.dir=runs/${oc.env:HOME,x}", "asks for the resolver oc.env"),
        ("run.dir=${oc.decode:1}", "asks for the resolver oc.decode"),
        ("run.dir=${now:%Y}", "asks for the resolver now"),
        ("run.dir=${a", "unfinished or nested reference"),
        ("run.dir=${${training.seed}}", "unfinished or nested reference"),
        ("training.seed=${training.seed}", "training.seed refers to itself: training.seed -> training.seed"),
        ("run.dir=a-${training.threads}", "puts ${training.threads} into text, but it is null"),
        ("run.dir=a-${optimizer.betas}", "puts ${optimizer.betas} into text, but it is not one value"),
        ("training.device=${training.seed}", "training.device must be one of cpu, cuda; found 1"),
        ("task.name=${model.name}", "task.name must be one of text, iq; found 'decoder'"),
        ("task.name=${task.name}", "task.name refers to itself"),
    ],
)  # fmt: skip
def test_refused(override: str, message: str) -> None:
    lines = refusal(override)
    assert len(lines) == 1, lines
    assert message in lines[0]
    assert lines[0].startswith(f"override {override}: ")


def test_a_cycle_of_two_names_both() -> None:
    lines = refusal("training.seed=${training.threads}", "training.threads=${training.seed}")
    assert lines[0].endswith("refers to itself: training.seed -> training.threads -> training.seed")


def test_a_target_that_is_missing_is_reported_once() -> None:
    text = TEXT.replace("{corpus: {source: text, span: [0.0, 0.9]}}", "{corpus: {path: '???'}}")
    assert refusal("data.validation.corpus.path=${data.train.corpus.path}", text=text) == [
        "x.yaml: data.train.corpus.path must be given: text; add it, or pass data.train.corpus.path=VALUE"
    ]


def test_texts_that_double_at_every_step_are_stopped() -> None:
    domains = "".join(
        f"    d{i}: {{path: '${{data.train.d{i + 1}.path}}${{data.train.d{i + 1}.path}}'}}\n" for i in range(15)
    )
    text = f"run: {{dir: r}}\ntraining: {{max_steps: 1}}\ndata:\n  train:\n{domains}    d15: {{path: xx}}\n"
    assert any("grows to more than 4096 characters" in line for line in refusal(text=text))


def test_a_chain_without_end_is_stopped() -> None:
    domains = "".join(f"    d{i}: {{path: '${{data.train.d{i + 1}.path}}'}}\n" for i in range(900))
    text = f"run: {{dir: r}}\ntraining: {{max_steps: 1}}\ndata:\n  train:\n{domains}    d900: {{path: x}}\n"
    assert "is a chain of more than 20 references" in refusal(text=text)[0]
