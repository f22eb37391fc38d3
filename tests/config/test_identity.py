"""What makes two runs one, and what a resume may change of it."""

import pytest

from pretrain.config import (
    RESUMABLE,
    RunConfig,
    difference,
    identity_sha256,
    is_resumable,
    leaves,
    parse,
    resumed,
    to_yaml,
    tree_of,
)
from pretrain.errors import ConfigError
from tests.config.written import IQ, config

HASHES = {"train.corpus": "a" * 64, "validation.corpus": "b" * 64}
IQ_HASHES = {"train.air": "c" * 64}

ALLOWED = [
    "run.dir=elsewhere/x",
    "training.max_steps=21",
    "training.device=cuda",
    "training.threads=1",
    "training.watchdog_timeout_seconds=60",
    "checkpoint.max_rolling_checkpoints=9",
    "checkpoint.keep_every_n_steps=50",
    "telemetry.gradient_log_interval=1",
    "telemetry.csv_log_path=/tmp/other.csv",
    "telemetry.trackers.tensorboard.folder=/tmp/curves",
    "thermal.gpu_temp_pause_threshold_c=80",
    "data.train.corpus.path=moved.txt",
    "data.validation.corpus.path=moved.txt",
]
REFUSED = [
    "training.max_steps=19",
    "training.seed=2",
    "training.batch_size=8",
    "training.gradient_accumulation_steps=2",
    "training.grad_clip_max_norm=null",
    "training.precision=bfloat16",
    "training.deterministic=false",
    "model.width=32",
    "optimizer.lr=0.1",
    "optimizer.betas=[0.9, 0.96]",
    "scheduler.scheduler_total_steps=21",
    "scheduler.min_lr_ratio=0.5",
    "guard.max_nan_retries=4",
    "spikes.loss.action=skip",
    "spikes.update.threshold=5",
    "spikes.targets_in_memory=0",
    "faults.inject=[nan_grad@5]",
    "model.norm_position=post",
    "checkpoint.checkpoint_every_n_steps=50",
    "checkpoint.num_best_checkpoints=2",
    "validation.validate_every_n_steps=50",
    "validation.rank_by=corpus",
    "data.sequence_length=64",
    "data.prefetch_steps=0",
    "data.train.corpus.span=[0, 0.8]",
    "data.train.more.path=more.txt",
]


def identity(one: RunConfig) -> str:
    return identity_sha256(one, HASHES)


@pytest.mark.parametrize("override", ALLOWED)
def test_a_resume_may_change(override: str) -> None:
    parent = config()
    child = resumed(parent, [override])
    changes = difference(parent, child)
    assert [change.key for change in changes.allowed] == [override.partition("=")[0]]
    assert not changes.refused
    assert identity(child) == identity(parent)


@pytest.mark.parametrize("override", REFUSED)
def test_s37_a_resume_keeps(override: str) -> None:
    key = override.partition("=")[0]
    with pytest.raises(ConfigError) as caught:
        resumed(config(), [override])
    lines = str(caught.value).splitlines()
    assert lines[0].startswith(f"resume: {key.rsplit('.', 1)[0]}.")
    assert any(line.startswith(f"resume: {key} was ") for line in lines)


MIGRATIONS = [one for one in REFUSED if one.startswith(("scheduler.", "training.max_steps"))]


@pytest.mark.parametrize("override", REFUSED)
def test_a_migration_may_change_the_schedule_and_the_end(override: str) -> None:
    if override not in MIGRATIONS:
        with pytest.raises(ConfigError, match=r"a resume keeps it\. Start another run"):
            resumed(config(), [override], migrate=True)
        return
    child = resumed(config(), [override], migrate=True)
    assert [change.key for change in difference(config(), child).refused] == [override.partition("=")[0]]
    # Where a run ends is not what makes it one; its schedule is.
    assert (identity(child) == identity(config())) is override.startswith("training.max_steps")


def test_a_migration_to_another_schedule_drops_the_keys_that_it_does_not_know() -> None:
    stable = config("scheduler.scheduler_type=warmup_stable_decay", "scheduler.decay_ratio=0.3")
    child = resumed(stable, ["scheduler.scheduler_type=linear"], migrate=True)
    assert child.scheduler == config("scheduler.scheduler_type=linear").scheduler
    assert resumed(stable, ["scheduler.scheduler_type=constant"], migrate=True).scheduler.name == "constant"
    whole = "scheduler={scheduler_type: inverse_square_root, decay_ratio: 0.1}"
    assert resumed(stable, [whole], migrate=True).scheduler.settings.decay_ratio == 0.1
    assert resumed(stable, ["scheduler={scheduler_type: constant}"], migrate=True).scheduler.name == "constant"
    for wrong, expected in (("nonsense", "must be one of"), ("7", "must be one of"), ("[", "override scheduler")):
        with pytest.raises(ConfigError, match=expected):
            resumed(stable, [f"scheduler.scheduler_type={wrong}"], migrate=True)


def test_the_identity_binds_the_weights_it_starts_from_and_not_their_path() -> None:
    here, there = config("init.from_checkpoint=a"), config("init.from_checkpoint=b")
    folder = config("init.from_huggingface=a")
    known = {identity_sha256(one, HASHES, "e" * 64) for one in (here, there, folder)}
    assert len(known | {identity(config()), identity_sha256(here, HASHES, "f" * 64)}) == 3
    assert not difference(here, there).refused
    for one in (config(), folder):
        assert difference(here, one).refused
        assert difference(one, here).refused
    for one, sha256 in ((here, None), (config(), "e" * 64)):
        with pytest.raises(ValueError, match="init_sha256: expected one where init names weights"):
            identity_sha256(one, HASHES, sha256)


def test_old_and_new_value_of_every_refused_key_are_told() -> None:
    with pytest.raises(ConfigError) as caught:
        resumed(config(), ["optimizer.lr=1e-8", "training.max_steps=5", "training.threads=2", "optimizer.betas=[0, 0]"])
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert lines[0] == (
        "resume: training.max_steps was 20 and would become 5; a resume can only raise it, and with --migrate lower it"
    )
    assert lines[1].startswith("resume: optimizer.lr was 0.003 and would become 1.0e-08; a resume keeps it.")
    assert lines[2].startswith(
        "resume: optimizer.betas was [0.9, 0.95] and would become [0.0, 0.0]; a resume keeps it."
    )


def test_a_change_of_entry_is_refused_key_by_key() -> None:
    with pytest.raises(ConfigError, match=r"take the key out of the parent's config\.yaml"):
        resumed(config(), ["scheduler.scheduler_type=constant"])
    changes = difference(config(), config("scheduler.scheduler_type=constant"))
    assert [(change.key, change.new) for change in changes.refused][:2] == [
        ("scheduler.scheduler_type", "constant"),
        ("scheduler.scheduler_total_steps", "(absent)"),
    ]


def test_a_raised_end_keeps_the_schedule() -> None:
    child = resumed(config(), ["training.max_steps=40"])
    assert (child.training.max_steps, child.scheduler.settings.scheduler_total_steps) == (40, 20)
    assert identity(child) == identity(config())
    # A run that was meant to take 40 steps from the start decays later: another run.
    assert identity(config("training.max_steps=40")) != identity(config())


def test_a_tracker_may_come_and_go() -> None:
    parent = config("telemetry.trackers={wandb: {project: x}}")
    child = resumed(parent, ["telemetry.trackers.wandb=null", "telemetry.trackers.tensorboard={}"])
    assert list(child.telemetry.trackers) == ["tensorboard"]
    assert len({identity(one) for one in (config(), parent, child)}) == 1
    assert to_yaml(resumed(child, ["telemetry.trackers.tensorboard=null"])) == to_yaml(config())


def test_nothing_changed_is_no_difference() -> None:
    assert resumed(config(), []) == config()
    assert difference(config(), config()).allowed == difference(config(), config()).refused == ()
    assert resumed(config(), ["training.seed=1"]) == config()


def test_mistakes_in_a_resume_are_config_errors() -> None:
    with pytest.raises(ConfigError, match=r"^override training\.sed=1: training\.sed is not a setting"):
        resumed(config(), ["training.sed=1"])


def test_identity_follows_the_data_and_not_its_path() -> None:
    assert identity(config()) != identity_sha256(config(), {**HASHES, "train.corpus": "d" * 64})
    assert identity(config()) != identity_sha256(config(), {**HASHES, "validation.corpus": "d" * 64})
    iq = config(text=IQ)
    assert identity_sha256(iq, IQ_HASHES) == identity_sha256(config("data.train.air.path=b.cu8", text=IQ), IQ_HASHES)
    assert identity_sha256(iq, {**IQ_HASHES, "train.signals": "e" * 64}) != identity_sha256(iq, IQ_HASHES)


def test_a_domain_named_like_a_resumable_key_stays_in_the_identity() -> None:
    def of(span: str) -> str:
        one = config(f"data.train.path={{path: a.txt, span: [0, {span}]}}")
        return identity_sha256(one, {**HASHES, "train.path": "c" * 64})

    assert of("0.5") != of("0.6")


@pytest.mark.parametrize("hashes", [{}, {"train.corpus": "a"}, {**HASHES, "train.other": "a"}])
def test_identity_wants_a_hash_for_each_domain(hashes: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="data_hashes: expected one for each of"):
        identity_sha256(config(), hashes)


def test_identity_is_the_same_for_the_same_meaning() -> None:
    assert identity(config("training.use_amp=true")) == identity(config("training.precision=bfloat16"))
    assert identity(config("training.max_steps=2e1")) == identity(config())
    assert identity(parse(to_yaml(config()), "y")) == identity(config())


@pytest.mark.parametrize("override", [one for one in REFUSED if not one.startswith("data.train.more")])
def test_what_a_resume_keeps_is_part_of_the_identity(override: str) -> None:
    assert identity(config(override)) != identity(config())


def test_every_key_is_either_in_the_identity_or_resumable() -> None:
    """Whatever key changes, either a resume may change it or the run is another one."""
    keys = [key for key, _ in leaves(tree_of(config()))]
    assert {key for key in keys if is_resumable(key)} == {
        *(key for key in keys if key.startswith(("telemetry.", "thermal."))),
        *(key for key in RESUMABLE if "*" not in key),
        "data.train.corpus.path",
        "data.validation.corpus.path",
    }


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("telemetry.anything", True),
        ("telemetry", False),
        ("data.train.wiki.en.path", True),
        ("data.train.path", False),
        ("data.train.x.span", False),
        ("training.max_steps_more", False),
        ("model.path", False),
    ],
)
def test_patterns(key: str, expected: bool) -> None:
    assert is_resumable(key) is expected
