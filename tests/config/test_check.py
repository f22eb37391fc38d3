"""Keys that contradict each other, and what is allowed and probably not meant."""

import pytest

from pretrain.config import to_yaml, warnings
from tests.config.written import IQ, TEXT, config, refusal

WSD = "scheduler.scheduler_type=warmup_stable_decay"
CONTRADICTIONS: list[tuple[str, list[str], str]] = [
    (TEXT, ["task.name=iq"], "source is text; expected a source of iq, synthetic-iq, or task.name=text"),
    (IQ, ["task={name: text}"], "task.name is text, but data.train.signals.source is synthetic-iq; expected"),
    (IQ, ["data.sequence_length=100"], "must be a multiple of task.patch_samples (16), such as 96 or 112"),
    (IQ, ["data.sequence_length=8"], "must be a multiple of task.patch_samples (16), such as 16"),
    (IQ, ["data.sequence_length=16"], "data.sequence_length (16) holds one patch"),
    (IQ, ["data.train.signals.snr_db=[20, 10]"], "data.train.signals.snr_db must be [lowest, highest]; found [20, 10]"),
    (IQ, ["data.train.signals.classes=[]"], "data.train.signals.classes must hold one class at least"),
    (TEXT, ["model.heads=3"], "model.heads: 3 does not divide"),
    (TEXT, ["model.kv_heads=3"], "model.kv_heads: 3 does not divide"),
    (TEXT, ["model.width=60"], "model.heads: 4 heads"),
    (TEXT, ["model.experts={count: 2, top_k: 3}"], "model.experts.top_k: 3 experts cannot be chosen of"),
    (TEXT, ["monitors.experts.every_n_steps=20"], "watches experts, and model.experts is null; set it to 0, or"),
    (
        TEXT,
        ["training.use_amp=true", "training.precision=float32"],
        "use_amp: true means bfloat16, but training.precision is float32",
    ),
    (
        TEXT,
        ["training.use_amp=false", "training.precision=bfloat16"],
        "use_amp: false means float32, but training.precision is bfloat16",
    ),
    (
        TEXT,
        ["training.use_amp=true", "training.precision=float16"],
        "use_amp: true means bfloat16, but training.precision is float16",
    ),
    (
        TEXT,
        ["training.use_amp=false", "training.precision=float16"],
        "use_amp: false means float32, but training.precision is float16",
    ),
    (
        TEXT,
        ["thermal.gpu_temp_resume_threshold_c=85"],
        "thermal.gpu_temp_resume_threshold_c (85) must be below thermal.gpu_temp_pause_threshold_c (85)",
    ),
    (
        TEXT,
        ["thermal.gpu_temp_critical_threshold_c=85"],
        "thermal.gpu_temp_pause_threshold_c (85) must be below thermal.gpu_temp_critical_threshold_c (85)",
    ),
    (TEXT, ["training.batch_warmup_samples=9"], "batch_warmup_samples is 9, but a step has one micro-batch"),
    (TEXT, ["optimizer.lr_scaling=sqrt"], "lr_scaling is sqrt, but optimizer.base_batch_size is null"),
    (TEXT, ["optimizer.groups.router.lr_multiplier=0.5"], "optimizer.groups.router.lr_multiplier is 0.5, but nothing"),
    (IQ, ["optimizer.groups.router.betas=[0.8, 0.9]"], "optimizer.groups.router.betas is [0.8, 0.9], but nothing"),
    (TEXT, ["optimizer.groups.head.weight_decay=0"], "optimizer.groups.head.weight_decay is 0.0, but nothing obeys it"),
    (TEXT, ["optimizer.base_batch_size=8"], "base_batch_size is 8, but optimizer.lr_scaling is none"),
    (
        TEXT,
        ["init={from_checkpoint: a, from_huggingface: b}"],
        "init.from_checkpoint and init.from_huggingface are both",
    ),
    (IQ, ["init.from_huggingface=a"], "init.from_huggingface takes weights of text, but task.name is iq"),
    (TEXT, ["thermal.switch_on_thermal=true"], "thermal.switch_on_thermal needs thermal.gpu_temp_guard=true"),
    (
        TEXT,
        ["thermal.gpu_temp_guard=true"],
        "telemetry.gpu_metrics_backend is none; set telemetry.gpu_metrics_backend=nvml",
    ),
    (
        TEXT,
        ["faults.inject=[temperature@5x90]"],
        "is a reading of a guard that is off; set thermal.gpu_temp_guard=true",
    ),
    (TEXT, ["faults.inject=[nan_grad]"], "faults.inject: 'nan_grad' is not kind@batch or kind@batchxVALUE"),
    (TEXT, ["faults.inject=[nan_gard@5]"], "'nan_gard@5' has no kind of fault; did you mean nan_grad?"),
    (TEXT, ["faults.inject=[kill@5, kill@5]"], "'kill@5' is 'kill@5' again; a kind fires once at a batch"),
    (
        TEXT,
        ["validation.rank_by=corpsu"],
        "validation.rank_by must be mean or a validation domain (corpus); found 'corpsu'",
    ),
    (TEXT, ["data.validation.mean={path: x}"], "data.validation.mean has the name that means all domains"),
    (TEXT, ["data.train.corpus.span=[0.5, 0.5]"], "data.train.corpus.span must begin before it ends"),
    (TEXT, ["data.validation.corpus.span=[1, 0]"], "data.validation.corpus.span must begin before it ends"),
    (TEXT, [WSD, "scheduler.scheduler_warmup_ratio=0.9"], "(0.9) + scheduler.decay_ratio (0.2) is more than 1"),
    (
        TEXT,
        ["telemetry.csv_log_path=../x.csv"],
        "telemetry.csv_log_path must not lead upward by `..`; found '../x.csv'",
    ),
    (TEXT, ["telemetry.csv_log_path=/a/../x.csv"], "telemetry.csv_log_path must not lead upward by `..`"),
    (TEXT, [f"telemetry.csv_log_path={'n' * 300}.csv"], "telemetry.csv_log_path: its name must be no longer than 240"),
    (TEXT, ["telemetry.csv_log_path=a/"], "telemetry.csv_log_path must name a file"),
    (TEXT, ["telemetry.csv_log_path=''"], "telemetry.csv_log_path must name a file"),
    (TEXT, ["run.dir=' '"], "run.dir must name a folder"),
    (TEXT, ["run.dir=~/runs"], "run.dir begins with ~, which is not your home folder here"),
]


@pytest.mark.parametrize(("text", "overrides", "message"), CONTRADICTIONS)
def test_contradiction(text: str, overrides: list[str], message: str) -> None:
    lines = refusal(*overrides, text=text)
    assert lines
    assert all(line.startswith(("x.yaml: ", "x.yaml with ")) for line in lines)
    assert any(message in line for line in lines), lines


def test_a_contradiction_names_the_overrides_that_have_a_part_in_it() -> None:
    assert refusal("model.heads=3", "training.max_steps=7")[0].startswith(
        "x.yaml with model.heads=3: model.heads: 3 do"
    )
    (line,) = refusal("model.width=96", "model.heads=64")
    assert line.startswith("x.yaml with model.heads=64, model.width=96: model.heads: 64")
    (line,) = refusal(text=TEXT + "model: {heads: 3}")
    assert line.startswith("x.yaml: model.heads: 3 does not divide")


def test_every_contradiction_is_listed() -> None:
    assert len(refusal("model.heads=3", "task.name=iq", "validation.rank_by=x", "telemetry.csv_log_path=..")) >= 4


@pytest.mark.parametrize(
    ("overrides", "precision"),
    [
        ([], "float32"),
        (["training.use_amp=true"], "bfloat16"),
        (["training.use_amp=false"], "float32"),
        (["training.use_amp=null", "training.precision=bfloat16"], "bfloat16"),
        (["training.use_amp=true", "training.precision=bfloat16"], "bfloat16"),
        (["training.precision=float16"], "float16"),
    ],
)
def test_use_amp_becomes_precision(overrides: list[str], precision: str) -> None:
    training = config(*overrides).training
    assert (training.precision, training.use_amp) == (precision, None)


@pytest.mark.parametrize("name", ["cosine", "linear_warmup_then_constant", "warmup_stable_decay"])
def test_the_steps_of_the_schedule_are_written_out(name: str) -> None:
    one = config(f"scheduler.scheduler_type={name}")
    assert one.scheduler.settings.scheduler_total_steps == 20
    assert "scheduler_total_steps: 20" in to_yaml(one)
    other = config(f"scheduler.scheduler_type={name}", "scheduler.scheduler_total_steps=7")
    assert other.scheduler.settings.scheduler_total_steps == 7
    assert config("scheduler.scheduler_type=constant").scheduler.name == "constant"


def test_allowed() -> None:
    assert not refusal("data.stride=500", "validation.rank_by=corpus", "telemetry.csv_log_path=/tmp/x.csv")
    assert not refusal("data.train.corpus.span=[0, 1]", "scheduler.scheduler_total_steps=5")
    assert not refusal("optimizer.groups.router.lr_multiplier=0.5", "model.experts.count=4")
    assert not refusal("optimizer.groups.head.lr_multiplier=0.5", "model.tie_embeddings=false")
    assert not refusal("optimizer.groups.head.lr_multiplier=0.5", text=IQ)  # no table, so that the head is its own
    assert not refusal("optimizer.groups.head.lr_multiplier=1.0", "optimizer.groups.router.weight_decay=null")


QUIET = [
    "guard.inf_post_clip_threshold=0.5",
    "validation.validate_every_n_steps=10",
    "checkpoint.checkpoint_every_n_steps=5",
]
WARNINGS: list[tuple[list[str], str | None]] = [
    ([], None),
    (["guard.inf_post_clip_threshold=1.0"], "guard.inf_post_clip_threshold (1) is not below"),
    (["guard.inf_post_clip_threshold=10.0"], None),  # with a norm of 1 these are the defaults
    (["guard.inf_post_clip_threshold=10.0", "training.grad_clip_max_norm=2"], "(10) is not below"),
    (["guard.inf_post_clip_threshold=1.0", "training.grad_clip_max_norm=null"], None),
    (["checkpoint.checkpoint_every_n_steps=7"], "do not meet by step 20"),
    (["checkpoint.checkpoint_every_n_steps=7", "checkpoint.num_best_checkpoints=0"], None),
    (["validation.validate_every_n_steps=100"], None),
    (["validation.validate_every_n_steps=100", "checkpoint.checkpoint_every_n_steps=3"], "do not meet by step 20"),
    (["validation.validate_every_n_steps=50", "checkpoint.checkpoint_every_n_steps=50"], None),
    (["checkpoint.checkpoint_every_n_steps=50"], "(50) is more than training.max_steps (20): no checkpoint of the cad"),
    (["monitors.blocks.every_n_steps=20", "monitors.regression.every_n_steps=1"], None),
    (["monitors.blocks.every_n_steps=21"], "monitors.blocks.every_n_steps (21) is more than training.max_steps (20)"),
    (["monitors.regression.every_n_steps=3"], "monitors.regression.every_n_steps (3) and validation.validate_every_n"),
    (
        ["model.size=gpt2-124m", "model.width=96", "model.layers=2", "model.heads=12", "model.ffn_width=null"],
        "model.size gpt2-124m: what is given beside it wins: width is 96 in place of 768, layers is 2 in place of 12, "
        "ffn_width is null in place of 3072",
    ),
    (["model.size=llama-1b", "model.tie_embeddings=false"], "what is given beside it wins: tie_embeddings is false in"),
    (["model.size=llama-1b", "model.width=2048", "model.init_std=0.1"], None),
    (["optimizer.galore_rank=64"], "optimizer.galore_rank is 64, and nothing obeys it while optimizer.use_galore is f"),
    (["optimizer.galore_rank=64", "optimizer.use_galore=true"], None),
    (["optimizer.groups.embeddings.lr_multiplier=0.5", "optimizer.groups.norms.betas=[0.9, 0.99]"], None),
    (["optimizer.optimizer_class=lion"], None),
    (["checkpoint.keep_every_n_steps=10"], None),
    (["checkpoint.keep_every_n_steps=4"], "and what is not saved is not kept: only steps 0 and 20 are, the multiples"),
    (
        ["checkpoint.keep_every_n_steps=6"],
        "kept: only step 0 is; both meet at step 30 first, and training.max_steps is",
    ),
    (["checkpoint.keep_every_n_steps=2"], "kept: only multiples of 10 are, steps 0, 10, 20"),
    (["checkpoint.keep_every_n_steps=1"], "kept: only multiples of 5 are, steps 0, 5, 10 and so on"),
    (["scheduler.scheduler_total_steps=21"], "scheduler.scheduler_total_steps (21) is more than training.max_steps"),
    (["scheduler.scheduler_total_steps=19"], "the learning rate is 0 from step 19 on"),
    (["scheduler.scheduler_total_steps=19", "scheduler.min_lr_ratio=0.1"], None),
    (["scheduler.scheduler_total_steps=19", "scheduler.scheduler_type=linear_warmup_then_constant"], None),
]


@pytest.mark.parametrize(("overrides", "message"), WARNINGS)
def test_warning(overrides: list[str], message: str | None) -> None:
    found = warnings(config(*QUIET, *overrides))
    assert len(found) == (message is not None), found
    assert message is None or message in found[0]


def test_validating_on_training_data_is_warned_of() -> None:
    text = "run: {dir: r}\ntraining: {max_steps: 20}\ndata: {train: {corpus: {}}}\n"
    assert "data.validation is empty" in warnings(config(*QUIET, text=text))[0]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["spikes.warmup_steps=5000"], "spikes.warmup_steps (5000) is not below training.max_steps"),
        (["spikes.update.action=roll_back", "training.max_steps=150"], "spikes.update.action is roll_back, and"),
        (["spikes.update.action=roll_back", "training.max_steps=1000"], None),
        (["training.max_steps=10"], None),
    ],
)
def test_spikes_that_cannot_be_seen_are_warned_of(overrides: list[str], said: str | None) -> None:
    found = [line for line in warnings(config(*overrides)) if line.startswith("spikes.")]
    assert len(found) == (said is not None)
    assert said is None or found[0].startswith(said)
