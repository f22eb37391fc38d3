"""What a file may say, and what each mistake in it is answered with."""

import dataclasses
import os
from pathlib import Path

import pytest

from pretrain.config import load, parse, to_yaml
from pretrain.config.later import LATER
from pretrain.config.settings import NAMED, SECTIONS, SOURCE, groups_of, plain_sections, settings_of
from pretrain.data.text import TextSettings
from pretrain.errors import ConfigError
from pretrain.models import ExpertSettings
from pretrain.policy.spikes import SignalSettings, SpikeSettings
from tests.config.written import IQ, TEXT, config, refusal

# What is added to the small text configuration as an override, and the one line that answers it.
MISTAKES: list[tuple[str, str]] = [
    ("training.max_step=5", "training.max_step is not a setting of training; did you mean max_steps?"),
    ("optimizer.lrr=1", "optimizer.lrr is not a setting of adamw; did you mean lr?"),
    ("optimizer.LR=1", "optimizer.LR is not a setting of adamw; did you mean lr?"),
    ("optimizer.max_steps=5", "optimizer.max_steps is not a setting of adamw; did you mean training.max_steps?"),
    (
        "checkpoint.every_n_steps=5",
        "checkpoint.every_n_steps is not a setting of checkpoint; did you mean checkpoint_every_n_steps?",
    ),
    ("training.heads=5", "training.heads is not a setting of training; did you mean model.heads?"),
    ("max_steps=5", "max_steps is not a section; did you mean training.max_steps?"),
    ("optimiser={}", "optimiser is not a section; did you mean optimizer?"),
    ("parallel.every=5", "parallel is not a section; it is not in this version"),
    ("training.compile=none", "training.compile is not a setting of training; it is not in this version"),
    ("data.train.corpus.weight=2", "data.train.corpus.weight is not a setting of text; it is not in this version"),
    ("data.validation.corpus.pth=2", "data.validation.corpus.pth is not a setting of text; did you mean path?"),
    ("run.zzz=1", "run.zzz is not a setting of run; expected dir"),
    ("training.seed.0=5", "training.seed.0 goes deeper than any setting; give a list or a mapping as a whole"),
    ("optimizer.betas.0=0.5", "optimizer.betas must be a list of 2 values, each a finite number of at least 0 and"),
    ("training.seed=010", "training.seed must be a whole number of at least 0; found '010'; write 10:"),
    ("training.max_steps=1e3.5", "must be a whole number of at least 1; found '1e3.5'"),
    ("training.max_steps=2.5", "training.max_steps must be a whole number of at least 1; found 2.5"),
    ("training.max_steps=1_000", "found '1_000'; write 1000 without underscores"),
    ("training.max_steps=12:30:00", "training.max_steps must be a whole number of at least 1; found '12:30:00'"),
    ("training.max_steps='20'", "found '20'; write 20 without quotes"),
    ("training.max_steps=0x10", "found '0x10'; write the number in base ten"),
    ("training.max_steps=true", "training.max_steps must be a whole number of at least 1; found true"),
    ("training.max_steps=", "training.max_steps must be a whole number of at least 1; found null"),
    ("training.max_steps=0", "training.max_steps must be a whole number of at least 1; found 0"),
    ("training.max_steps=9223372036854775808", "which does not fit in 64 bits"),
    ("training.max_steps=1e18", "write a whole number of this size digit by digit"),
    ("training.max_steps={a: 1}", "training.max_steps must be a whole number of at least 1; found a mapping"),
    ("training.max_steps=[1]", "training.max_steps must be a whole number of at least 1; found [1]"),
    ("training.device=gpu", "training.device must be one of cpu, cuda; found 'gpu'; did you mean cuda?"),
    ("model.size=gpt2", "found 'gpt2'; did you mean gpt2-124m?"),
    ("compile=true", "compile is not a section; training.compile is not in this version"),
    ("training.device=no", "training.device must be one of cpu, cuda; found 'no'"),
    ("training.device=cuda:0", "training.device must be one of cpu, cuda; found 'cuda:0'; did you mean cuda?"),
    ("training.device=1", "training.device must be one of cpu, cuda; found 1; put it in quotes"),
    ("training.deterministic=no", "training.deterministic must be true or false; found 'no'; write false"),
    ("training.deterministic=True", "training.deterministic must be true or false; found 'True'; write true"),
    ("training.deterministic=1", "training.deterministic must be true or false; found 1"),
    ("training.precision=fp16", "one of float32, bfloat16, float16; found 'fp16'; did you mean float16?"),
    ("spikes.los.action=skip", "spikes.los is not a setting of spikes; did you mean loss?"),
    ("spikes.loss.acton=skip", "spikes.loss.acton is not a setting of spikes.loss; did you mean action?"),
    ("spikes.loss.zzz=1", "spikes.loss.zzz is not a setting of spikes.loss; expected action, threshold"),
    ("spikes.threshold=5", "spikes.threshold is not a setting of spikes; did you mean spikes.loss.threshold?"),
    ("spikes.loss.window_steps=5", "is not a setting of spikes.loss; did you mean spikes.window_steps?"),
    ("spikes.loss.action=rollback", "found 'rollback'; did you mean roll_back?"),
    ("spikes.update.action=skip", "spikes.update.action must be one of record, roll_back; found 'skip'"),
    ("spikes.gradient.threshold=0", "spikes.gradient.threshold must be a finite number above 0; found 0.0"),
    ("spikes.gradient.threshold=.inf", "found '.inf'; a setting is a finite number"),
    ("spikes.loss=3", "spikes.loss must be a group of settings, a mapping of keys to values; found 3"),
    ("spikes={loss: null}", "spikes.loss must be a group of settings, a mapping of keys to values; found null"),
    ("spikes={loss: {acton: skip}}", "spikes.loss.acton is not a setting of spikes.loss; did you mean action?"),
    ("spikes.loss.action.x=1", "spikes.loss.action.x goes deeper than any setting"),
    ("spikes.window_steps.x=1", "spikes.window_steps must be a whole number of at least 16; found a mapping"),
    ("spikes.window_steps=8", "spikes.window_steps must be a whole number of at least 16; found 8"),
    ("spikes.learning_rate_factor=1.5", "must be a finite number of at most 1 and above 0; found 1.5"),
    ("loss.action=skip", "loss is not a section; did you mean spikes.loss?"),
    (
        "model.experts=4",
        "a mapping of keys to values, as in model.experts={count: 4}; found 4",
    ),
    ("model.experts=four", "model.experts must be a group of settings, a mapping of keys to values; found 'four'"),
    ("faults.inject=nan_grad@5", "faults.inject must be a list of any number of values, each text; found 'nan_grad@5'"),
    ("faults.inject=[5]", "faults.inject must be a list of any number of values, each text; found 5"),
    ("model.norm_position=mid", "model.norm_position must be one of pre, post; found 'mid'"),
    ("training.grad_clip_max_norm=0", "must be a finite number above 0, or null; found 0.0"),
    ("optimizer.lr=.nan", "optimizer.lr must be a finite number above 0; found '.nan'; a setting is a finite number"),
    ("optimizer.lr=nan", "optimizer.lr must be a finite number above 0; found 'nan'; a setting is a finite number"),
    ("optimizer.lr=.inf", "optimizer.lr must be a finite number above 0; found '.inf'; a setting is a finite number"),
    ("optimizer.lr=1e999", "found '1e999'; that is larger or smaller than a float can be"),
    ("training.max_steps=20,", "at least 1; found '20,'"),
    ("optimizer.lr=3,5", "found '3,5'; write 3.5 with a point"),
    ("optimizer.lr='3e-3'", "found '3e-3'; write 3e-3 without quotes"),
    ("optimizer.lr=false", "optimizer.lr must be a finite number above 0; found false"),
    ("optimizer.lr=9007199254740993", "optimizer.lr must be a finite number above 0; found 9007199254740993"),
    ("optimizer.betas=0.9", "must be a list of 2 values, each a finite number of at least 0 and below 1; found 0.9"),
    ("optimizer.betas=[0.9]", "optimizer.betas must be a list of 2 values"),
    ("optimizer.betas=[0.9, 1]", "optimizer.betas must be a list of 2 values, each a finite number of at least 0"),
    ("optimizer.betas=[0.9, .nan]", "found '.nan'; a setting is a finite number"),
    ("data.train.corpus.span=[0, 1.5]", "each a finite number from 0 to 1; found 1.5"),
    ("data.train.corpus.path=7", "data.train.corpus.path must be text; found 7; put it in quotes"),
    ("data.train.corpus.path=1e3", "data.train.corpus.path must be text; found 1000.0; put it in quotes"),
    ('data.train.corpus.path="a\\0b"', "it holds the control character 0x00"),
    ('data.train.corpus.path="\\uD800"', "it is not valid UTF-8"),
    ("data.train.corpus.path=" + "x" * 5000, "it is longer than 4096 characters"),
    ("run.dir=null", "run.dir must be text; found null"),
    ("data.train.corpus.source=txt", "data.train.corpus.source must be one of text, iq, synthetic-iq; found 'txt'"),
    (
        "optimizer.optimizer_class=adam",
        "must be one of adamw, sgd, adafactor, muon, lion, apollo, apollo_mini; found 'adam'; did",
    ),
    ("optimizer.groups.body.eps=1", "optimizer.groups.body is not a setting of optimizer.groups; expected embeddings,"),
    ("optimizer.groups.head.lr=1", "optimizer.groups.head.lr is not a setting of optimizer.groups.head; did you mean"),
    ("optimizer.groups.head.betas=[0.9]", "optimizer.groups.head.betas must be a list of 2 values, each a finite"),
    ("optimizer.groups={head: {lr_multiplier: -1}}", "lr_multiplier must be a finite number of at least 0; found -1"),
    ("scheduler.scheduler_type=7", "scheduler.scheduler_type must be one of cosine, linear, constant"),
    ("data.train.new={source: iq}", "data.train.new.path must be given: text; add it, or pass data.train.new.path="),
    ("data.train.new=3", "data.train.new must be a domain, a mapping of keys to values; found 3"),
    ("telemetry.trackers.tensorbord={}", "telemetry.trackers.tensorbord is not a tracker; did you mean tensorboard?"),
    ("telemetry.trackers={zzz: null}", "telemetry.trackers.zzz is not a tracker; expected tensorboard, wandb"),
    (
        "telemetry.trackers.wandb.projct=x",
        "telemetry.trackers.wandb.projct is not a setting of wandb; did you mean pro",
    ),
    ("telemetry.trackers.wandb.mode=on", "wandb.mode must be one of offline, online; found 'on'"),
    (
        "telemetry.trackers.tensorboard=true",
        "must be the settings of a tracker, a mapping of keys to values; found true",
    ),
    ("telemetry.trackers=[wandb]", "telemetry.trackers must be trackers by name, a mapping of keys to values"),
    ("telemetry.trackers.wandb.a.b=1", "telemetry.trackers.wandb.a.b goes deeper than any setting"),
    (
        'telemetry.trackers.tensorboard.folder=" "',
        "telemetry.trackers.tensorboard.folder must name a folder, or be null",
    ),
    ("telemetry.trackers.tensorboard.folder=~/x", "telemetry.trackers.tensorboard.folder begins with ~"),
    ("data.train={a b: {}}", "data.train.a b is no name for a domain"),
    ("data.train={a..b: {}}", "data.train.a..b is no name for a domain"),
    ("guard=null", "guard must be a section, a mapping of keys to values; found null"),
    ("guard=[]", "guard must be a section, a mapping of keys to values; found []"),
]


# An optimizer with the key of a moment that it does not have: groups have it, and would refuse it as well.
WITHOUT_MOMENTS = [("lion", "optimizer.eps"), ("sgd", "optimizer.eps"), ("sgd", "optimizer.betas"), ("lion", "eps")]


@pytest.mark.parametrize(("name", "key"), WITHOUT_MOMENTS)
def test_no_hint_leads_to_a_key_that_is_refused(name: str, key: str) -> None:
    (line,) = refusal(f"optimizer.optimizer_class={name}", f"{key}=1")
    assert "optimizer.groups" not in line
    if key.startswith("optimizer."):
        assert "expected optimizer_class, lr, lr_scaling" in line


def test_a_hint_leads_to_a_group_where_that_is_obeyed() -> None:
    (line,) = refusal("optimizer.lr_multiplier=1", "optimizer.optimizer_class=lion")
    assert line.endswith("did you mean optimizer.groups.embeddings.lr_multiplier?")
    (line,) = refusal("optimizer.groups.eps=1", "optimizer.optimizer_class=adamw")
    assert line.endswith("did you mean optimizer.eps?")


@pytest.mark.parametrize(("override", "message"), MISTAKES)
def test_s36_s38_mistake(override: str, message: str) -> None:
    lines = refusal(override)
    assert len(lines) == 1, lines
    assert message in lines[0]
    assert lines[0].startswith(("x.yaml: ", f"x.yaml with {override}: ", f"override {override}: "))


def test_a_mistake_in_the_file_names_the_file() -> None:
    assert refusal(text=TEXT + "optimizer: {lrr: 1}") == [
        "x.yaml: optimizer.lrr is not a setting of adamw; did you mean lr?"
    ]


def test_every_mistake_is_listed_at_once() -> None:
    text = TEXT + "optimizer: {lrr: 1, lr: no}\nmodel: {width: 1.5}\nscheduler: {scheduler_type: cosin}\nguards: {}\n"
    lines = refusal("training.seed=x", "guard.max_nan_retry=1", text=text)
    assert [line.partition(": ")[2].split()[0] for line in lines] == [
        "scheduler.scheduler_type",
        "optimizer.lrr",
        "guard.max_nan_retry",
        "guards",
        "training.seed",
        "model.width",
        "optimizer.lr",
    ]


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("training.max_steps=1e3", "max_steps", 1000),
        ("training.max_steps=2.0", "max_steps", 2),
        ("training.grad_clip_max_norm=2", "grad_clip_max_norm", 2.0),
        ("training.grad_clip_max_norm=~", "grad_clip_max_norm", None),
        ("training.threads=null", "threads", None),
        ("training.seed=9223372036854775807", "seed", 2**63 - 1),
        ("training.grad_clip_max_norm=1e-3", "grad_clip_max_norm", 0.001),
    ],
)
def test_numbers_mean_what_they_say(override: str, key: str, value: object) -> None:
    found = getattr(config(override).training, key)
    assert (found, type(found)) == (value, type(value))


def test_the_least_that_must_be_said() -> None:
    lines = refusal(text="run: {}")
    assert [line.split()[1] for line in lines] == ["run.dir", "training.max_steps"]
    least = parse("run: {dir: r}\ntraining: {max_steps: 1}\ndata: {train: {corpus: {}}}", "x.yaml")
    assert (least.task.name, least.model.name, least.optimizer.name) == ("text", "decoder", "adamw")
    assert least.data.train["corpus"].name == "text"
    assert least.validates_on_training_data
    assert least.validation_domains == least.data.train


def test_a_text_run_that_names_no_data_reads_the_builtin_corpus_and_holds_its_end_out() -> None:
    least = parse("run: {dir: r}\ntraining: {max_steps: 1}", "x.yaml")
    assert least.data.train["pydoc"].settings == TextSettings("builtin:pydoc", (0.0, 0.9))
    assert least.data.validation["pydoc"].settings == TextSettings("builtin:pydoc", (0.9, 1.0))
    assert [line.split()[1] for line in refusal(text="task: {name: iq}")] == [
        "data.train",
        "run.dir",
        "training.max_steps",
    ]


def test_validation_data_of_its_own() -> None:
    assert not config().validates_on_training_data
    assert config().validation_domains == config().data.validation


def test_a_section_is_typed_by_the_entry_it_names() -> None:
    iq = config(text=IQ)
    assert (iq.task.name, iq.task.settings.patch_samples) == ("iq", 16)
    assert [choice.name for choice in iq.data.train.values()] == ["synthetic-iq", "iq"]
    assert refusal("scheduler.scheduler_type=constant", "scheduler.min_lr_ratio=0.1") == [
        "override scheduler.min_lr_ratio=0.1: scheduler.min_lr_ratio is not a setting of constant; "
        "expected scheduler_type"
    ]


def test_a_group_has_the_defaults_of_its_place() -> None:
    spikes = config().spikes
    assert spikes == SpikeSettings()
    assert [spikes.loss.action, spikes.gradient.action, spikes.update.action] == ["roll_back", "skip", "record"]
    # One key given leaves the others as they are there, not as they are in the class.
    spikes = config(text=TEXT + "spikes: {loss: {threshold: 4}, gradient: {}}").spikes
    assert spikes.loss == SignalSettings("roll_back", 4.0)
    assert spikes.gradient == SignalSettings("skip", 6.0)
    assert config(text=TEXT + "spikes: {}").spikes == SpikeSettings()


def test_a_group_can_be_overridden_key_by_key_or_as_a_mapping_and_referred_to() -> None:
    text = TEXT + "spikes: {loss: {action: skip}, window_steps: 64}"
    one = config("spikes.loss.threshold=5", "spikes.gradient={action: record}", text=text).spikes
    assert (one.loss, one.gradient, one.window_steps) == (SignalSettings("skip", 5.0), SignalSettings(), 64)
    one = config("spikes.loss.threshold=${spikes.gradient.threshold}", "spikes.gradient.threshold=7").spikes
    assert one.loss.threshold == one.gradient.threshold == 7.0
    assert config("spikes.healthy_steps=${spikes.window_steps}").spikes.healthy_steps == 128


def test_a_mistake_in_a_group_names_where_it_was_written() -> None:
    text = TEXT + "spikes:\n  loss: {action: skip, treshold: 5}\n"
    assert refusal(text=text) == [
        "x.yaml: spikes.loss.treshold is not a setting of spikes.loss; did you mean threshold?"
    ]
    assert refusal("spikes.gradient={action: 5}")[0].startswith(
        "override spikes.gradient={action: 5}: spikes.gradient.action must be one of record, skip, roll_back; found 5"
    )


def test_nothing_can_be_changed_afterwards() -> None:
    one = config()
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.training.seed = 2  # type: ignore[misc]
    with pytest.raises(TypeError):
        one.data.train["more"] = one.data.train["corpus"]  # type: ignore[index]
    assert isinstance(one.data.train["corpus"].settings.span, tuple)


def test_no_list_in_any_settings_class() -> None:
    entries = [entry.settings for section in (*NAMED.values(), SOURCE) for entry in section.table.values()]
    groups = [group.settings for cls in plain_sections().values() for group in groups_of(cls).values()]
    for cls in (*plain_sections().values(), *entries, *groups):
        assert dataclasses.fields(cls) is not None
        assert cls.__dataclass_params__.frozen, cls
        for setting in settings_of(cls).values():
            assert not isinstance(setting.default, list | dict), f"{cls.__name__}.{setting.name} can be changed"


def test_what_is_said_to_come_later_is_not_here_yet() -> None:
    for key in LATER:
        section, _, name = key.partition(".")
        if not name:
            assert section not in SECTIONS
        elif section == "data" and name.startswith("train.*."):
            assert all(name.rpartition(".")[2] not in settings_of(one.settings) for one in SOURCE.table.values())
        else:
            tables = [one.settings for one in NAMED[section].table.values()] if section in NAMED else []
            classes = tables or [plain_sections()[section]]
            assert all(name not in settings_of(cls) for cls in classes), f"{key} is here: take it out of LATER"


def test_a_file_and_its_overrides(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(TEXT)
    assert load(path) == config()
    assert load(str(path), ["training.seed=7"]).training.seed == 7
    (tmp_path / "link.yaml").symlink_to(path)
    assert load(tmp_path / "link.yaml") == config()
    assert to_yaml(load(path)) == to_yaml(config())


def test_paths_that_are_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "large").write_bytes(b"#" * (1 << 20))
    for path, message in [
        (tmp_path / "none.yaml", "cannot be opened: No such file or directory"),
        (tmp_path, "is a folder"),
        (tmp_path / "fifo", "is not a regular file"),
        (Path("/dev/zero"), "is not a regular file"),
        (tmp_path / "large", "is at most 262144 bytes"),
        (Path("a\0b"), "cannot be opened: embedded null byte"),
    ]:
        with pytest.raises(ConfigError) as caught:
            load(path)
        assert str(caught.value).startswith(f"{path}: ".replace("\0", "\\x00"))
        assert message in str(caught.value)


def test_a_group_that_may_be_null_is_there_when_something_in_it_is_given() -> None:
    """Null in its own text too, and an override makes the group of that."""
    assert config().model.settings.experts is None
    plain = to_yaml(config())
    assert "  experts: null\n" in plain
    for given in (["model.experts.count=8"], ["model.experts={count: 8}"]):
        made = config(*given, text=plain)
        assert made.model.settings.experts == ExpertSettings(8)
        assert config(text=to_yaml(made)) == made
    assert config("model.experts=null", text=to_yaml(made)) == config()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("model.experts={top_k: 2}", "model.experts.count must be given: a whole number from 2 to 4096; add it"),
        ("model.experts={}", "model.experts.count must be given"),
        ("model.experts=8", "model.experts must be a group of settings, a mapping of keys to values, as in mod"),
        ("model.experts.cuont=8", "model.experts.cuont is not a setting of model.experts; did you mean"),
        ("model.experts={count: 8, balance: 2}", "model.experts.balance must be a finite number from 0 to 1; found 2"),
    ],
)
def test_a_group_that_may_be_null_is_read_as_strictly(given: str, expected: str) -> None:
    assert any(expected in line for line in refusal(given))
