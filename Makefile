# Everything a person or CI runs. `make quickstart` and `make test` work from a fresh clone with Python 3.11 or newer.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
TORCH  := $(shell sed -n 's/^torch==/torch==/p' constraints.txt)
RUNS   ?= runs
SEED   ?= 2

.PHONY: install develop quickstart quickstart-iq adsb test check fast lint bench drill incidents kill-lineage optimizers
.PHONY: clean

install: $(VENV)/.installed
develop: $(VENV)/.developed

# torch comes first and by its pinned version, so that a CPU build of a local index is taken where there is one.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check '$(TORCH)'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.developed: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,tensorboard,wandb]'
	touch $@

# A run is never overwritten: where an earlier quickstart left one, the next goes to quickstart-text-2, and so on.
quickstart: install
	$(BIN)/python scripts/quickstart.py configs/quickstart-text.yaml --run-dir $(RUNS)/quickstart-text

quickstart-iq: install
	$(BIN)/python scripts/quickstart.py configs/quickstart-iq.yaml --run-dir $(RUNS)/quickstart-iq

# The real ADS-B recording is not part of the repository: make adsb RECORDING=path/to/adsb_1090MHz_2Msps.cu8
adsb: install
	@test -n "$(RECORDING)" || { echo "say which recording: make adsb RECORDING=FILE.cu8"; exit 2; }
	$(BIN)/python scripts/quickstart.py configs/iq-adsb.yaml 'data.train.adsb.path=$(RECORDING)' --run-dir $(RUNS)/iq-adsb

lint: develop
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fast: develop
	$(BIN)/python -m pytest -q -n 2 -m 'not slow and not gpu'

check: lint fast

test: lint
	$(BIN)/python -m pytest -q -n 2 -m 'not gpu' --durations=15

bench: install
	$(BIN)/python -m benchmarks.loop_overhead
	$(BIN)/python -m benchmarks.guard_cost
	$(BIN)/python -m benchmarks.monitor_cost
	$(BIN)/python -m benchmarks.verify_rate

# Every fault at every point that can be made here, each followed by a recovery; a quick part runs with the tests.
drill: develop
	$(BIN)/python -m tests.drill

# A quarter to half an hour on two cores: six causes made in 40 runs each, and 50,000 healthy steps.
incidents: install
	$(BIN)/python -m benchmarks.incidents --seed $(SEED)

kill-lineage: install
	$(BIN)/python scripts/kill_lineage.py --kills 30

# Some eighty runs of 8 s of a core each; what has been run is kept below runs, and only what is missing is run again.
optimizers: install
	$(BIN)/python scripts/optimizer_bytes.py --vocabulary 50257
	$(BIN)/python scripts/optimizer_losses.py --kept $(RUNS)/optimizer-losses

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
