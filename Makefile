# make run    set up, then learn the embedded default stream with three methods and compare them
# make test   set up, then check format, lint, types, and run all tests
# make fuzz   set up, then read 20,000 damaged files of every kind: about 30 minutes on two cores
# make faults set up, then kill 300 runs of every method and let them go on: about 15 minutes
# make setup  set up only: a virtual environment in .venv
# make format put the code in the house format
# make bench  measure speed and memory beside slow references: 5 minutes, on a quiet machine
# make scaling measure how cost grows, and fill docs/scaling.md: 7 minutes, on a quiet machine
# make tables learn the embedded stream with every method and three seeds, and fill the docs' tables

PYTHON ?= python3
BIN := .venv/bin
WORKERS ?= 2 # processes of make test, one thread each

.PHONY: run test fuzz faults setup format bench scaling tables clean

run: setup
	@$(BIN)/classgrad run --method cgp,gpm,finetune

test: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

fuzz: setup
	OMP_NUM_THREADS=1 PYTHONPATH=tests:src $(BIN)/python -m fuzz --out results/fuzz.json
	$(BIN)/python docs/fill_tables.py

faults: setup
	OMP_NUM_THREADS=1 PYTHONPATH=tests:src $(BIN)/python -m faults --kills 300 --out results/faults.json
	$(BIN)/python docs/fill_tables.py

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup
	$(BIN)/python -m benchmarks
	$(BIN)/python docs/fill_tables.py

scaling: setup
	$(BIN)/python -m benchmarks.scaling
	$(BIN)/python -m benchmarks.traffic

tables: setup
	rm -rf results/permuted-digits
	OMP_NUM_THREADS=1 $(BIN)/classgrad run --method all --seed 4,5,6 --out results/permuted-digits
	OMP_NUM_THREADS=1 $(BIN)/classgrad run --method imm --set merge=mean --seed 4,5,6 --out results/permuted-digits
	rm results/permuted-digits/matrices.png
	$(BIN)/python docs/fill_tables.py

setup: .venv/.ready

# Made again only when what is to be installed has changed.
.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 setup")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis
