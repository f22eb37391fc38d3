"""Every configuration that comes with the project loads, and says what it shows."""

from pathlib import Path

import pytest

from pretrain.config import load, parse, to_yaml
from pretrain.errors import ConfigError

FOLDER = Path(__file__).parents[2] / "configs"
FILES = sorted(FOLDER.glob("*.yaml"))
# What a file leaves to the command line.
NEEDED = {
    "gpt2-124m": ["data.train.text.path=corpus.txt"],
    "iq-adsb": ["data.train.adsb.path=air.cu8"],
    "iq-base": ["data.train.recordings.path=recordings"],
}


def test_they_are_found() -> None:
    assert {path.stem for path in FILES} >= {"quickstart-text", "quickstart-iq", *NEEDED}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_loads_and_loads_again_to_itself(path: Path) -> None:
    config = load(path, NEEDED.get(path.stem, []))
    assert parse(to_yaml(config), path.name) == config
    assert config.run.dir == f"runs/{path.stem}"
    assert not config.validates_on_training_data


@pytest.mark.parametrize("name", NEEDED)
def test_what_must_be_given_is_named(name: str) -> None:
    key = NEEDED[name][0].partition("=")[0]
    with pytest.raises(ConfigError) as caught:
        load(FOLDER / f"{name}.yaml")
    assert str(caught.value).splitlines() == [
        f"{FOLDER / name}.yaml: {key} must be given: text; add it, or pass {key}=VALUE"
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_begins_with_what_it_shows_the_command_and_the_result(path: Path) -> None:
    comment = [line for line in path.read_text().split("\n\n")[0].splitlines() if line.startswith("#")]
    assert comment[0].startswith("# What it shows: ")
    assert any(line.startswith(f"#     pretrain train --config configs/{path.name}") for line in comment)
    assert any(line.startswith("# Expected: ") for line in comment)


@pytest.mark.parametrize("name", NEEDED)
def test_held_out_data_is_the_same_recording(name: str) -> None:
    config = load(FOLDER / f"{name}.yaml", NEEDED[name])
    (train,), (validation,) = config.data.train.values(), config.data.validation.values()
    assert validation.settings.path == train.settings.path
    assert validation.settings.span[0] >= train.settings.span[1]


def test_a_step_of_the_gpt2_reference_is_half_a_million_tokens() -> None:
    config = load(FOLDER / "gpt2-124m.yaml", NEEDED["gpt2-124m"])
    samples = config.training.batch_size * config.training.gradient_accumulation_steps
    assert samples * config.data.sequence_length == 2**19
