# `make run` and `make test` do all their own set-up; everything else is a part of them or a longer proof.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Tests start many processes: what one has compiled, the next need not.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install run test pytest test-rfdetr lint docs bench soak clean

install: $(STAMP)

# Of 18,000 modules a third is ever imported, and compiled then; a new pip unpacks the rest in half the time of an old one.
$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "rankwise needs Python 3.11 or newer, this is " + sys.version.split()[0] + ": make PYTHON=python3.11 …")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[dev]'
	touch $@

run: install  ## Train on the built-in dataset, evaluate, and draw what the detector finds.
	$(BIN)/rankwise train shapes_paa --run runs/default --overwrite

test: install  ## Lint and test, beside each other: one core lints while the other compiles kernels and starts to test.
	$(MAKE) --jobs 2 lint pytest

# Files of tests side by side, one thread each: that is quicker than one after the other on several threads. The number of processes is in tests/conftest.py.
pytest: install
	$(BIN)/python -m tests.compile_kernels
	OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

# rfdetr's training extra pins another hotcoco than ours: an environment of its own, on top of the usual one.
test-rfdetr: install  ## Test the integration of rfdetr with the package itself.
	test -x build/rfdetr/bin/python || $(BIN)/python -m venv build/rfdetr
	$(BIN)/python -c 'import site; print(site.getsitepackages()[0])' > "$$(build/rfdetr/bin/python -c 'import site; print(site.getsitepackages()[0])')/usual.pth"
	build/rfdetr/bin/python -m pip install --quiet --disable-pip-version-check 'rfdetr[train]'
	HF_HUB_OFFLINE=1 build/rfdetr/bin/python -m pytest tests/integrations/test_integrations_rfdetr.py

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Links out of docs/ are right where the files are read as they are; on the site their ends are beside the pages.
docs: install  ## Build the documentation's site, strictly: site/index.html opens from disk.
	rm -rf build/docs
	mkdir -p build
	cp -R docs build/docs
	mkdir build/docs/benchmarks
	cp benchmarks/results/*.md build/docs/benchmarks/
	cp CHANGELOG.md build/docs/changes.md
	sed -e 's#](docs/#](#g' -e 's#](CHANGELOG.md)#](changes.md)#' CONTRIBUTING.md > build/docs/contributing.md
	sed -i.bak 's#](\.\./benchmarks/results/#](benchmarks/#g' build/docs/*.md
	rm build/docs/*.bak
	$(BIN)/zensical build --clean --strict

bench: install  ## Every benchmark prints its ratios; run nothing beside them.
	for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

soak: install  ## Random scenes, kills and flipped bits, for hours: see docs/reliability.md.
	$(BIN)/python tools/soak.py
	PYTHONPATH=tests/training $(BIN)/python tools/kills.py

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache
