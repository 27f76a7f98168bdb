# `make run` and `make test` are the two commands of the README; both install into .venv first (constraints.txt):
# `make run` what it needs, the others also the extra of pyproject.toml that they need.
PYTHON ?= python3
VENV := .venv
BASE := $(VENV)/.installed
DEV := $(VENV)/.installed-dev
UNIT_TESTS := tests/detectors/mpfm tests/evaluation tests/images tests/protocol tests/sources tests/test_golden_numbers.py

.PHONY: run test check lint parameters app viz benchmark benchmark-peers faults fuzz audit clean

# the hard setting on ELPV, from raw images to data/08_reporting/elpv/hard/report.html
run: $(BASE)
	$(VENV)/bin/kedro run --pipelines=hard_setting

# style, types, layers of the code (docs/architecture.md), then all tests
test: lint
	OMP_NUM_THREADS=1 $(VENV)/bin/pytest --numprocesses=2 --dist=loadfile

# the same without the tests that take longest: about two minutes on two cores
check: lint
	OMP_NUM_THREADS=1 $(VENV)/bin/pytest --numprocesses=2 --dist=loadfile $(UNIT_TESTS)

lint: $(DEV)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

# docs/parameters.md from conf/base and the types of the parameters
parameters: $(DEV)
	$(VENV)/bin/python docs/parameters_page.py

# a page to inspect images with the production model, at http://127.0.0.1:8040; for example
# make app ARGS="--params=dataset=elpv --images=FOLDER"
app: $(VENV)/.installed-app
	$(VENV)/bin/kedro app $(ARGS)

# the map of the pipelines as a static site, with previews of the last run; its second page is /workflow
viz: $(VENV)/.installed-viz
	rm -rf build
	$(VENV)/bin/kedro viz build --include-previews
	@test -f build/api/deploy-viz-metadata
	@mkdir build/workflow
	@sed 's|<head>|<head><base href="../">|' build/index.html > build/workflow/index.html
	@echo "The map is in $(CURDIR)/build (what no run has made yet has no preview). To look at it: $(VENV)/bin/python -m http.server 4141 --directory build, and open http://localhost:4141"

# speed as ratios (docs/architecture.md)
benchmark: $(DEV)
	$(VENV)/bin/python benchmarks/speed.py
	$(VENV)/bin/python benchmarks/inspection.py

# MPFM and anomalib as a page; in an environment of its own, because anomalib brings eighteen packages, with the same
# torch; ARGS="--images 100 --coreset-ratio 0.01" is a quick try
benchmark-peers:
	$(PYTHON) -m venv $(VENV)-peers
	$(VENV)-peers/bin/pip install --quiet --constraint constraints.txt --editable '.[peers]'
	$(VENV)-peers/bin/python benchmarks/peers.py $(ARGS)

# every fault in every stage, and every damage of every kind of stored file (docs/operations.md); as root all of it,
# otherwise without full disks
faults: $(DEV)
	FAULTS=all OMP_NUM_THREADS=1 $(VENV)/bin/pytest tests/faults

# more than 100,000 odd inputs to everything that reads foreign bytes
fuzz: $(DEV)
	FUZZ_SHARE=1 OMP_NUM_THREADS=1 $(VENV)/bin/pytest --numprocesses=2 --dist=load tests/fuzzing

# known vulnerabilities of the installed packages; needs a way to the vulnerability service of PyPI
audit: $(DEV)
	$(PYTHON) -m venv $(VENV)-audit
	$(VENV)-audit/bin/pip install --quiet 'pip-audit>=2.10'
	$(VENV)/bin/pip freeze --exclude-editable > $(VENV)-audit/installed.txt
	$(VENV)-audit/bin/pip-audit --strict --disable-pip --no-deps --requirement $(VENV)-audit/installed.txt

$(BASE): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed, $(PYTHON) is %s: make PYTHON=python3.11" % sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --constraint constraints.txt --editable .
	touch $@

# an extra of pyproject.toml
$(VENV)/.installed-%: $(BASE)
	$(VENV)/bin/pip install --quiet --constraint constraints.txt --editable '.[$*]'
	touch $@

# removes the environment, not the data
clean:
	rm -rf $(VENV) $(VENV)-audit $(VENV)-peers
