# The two commands of the README: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
INSTALLED := $(VENV)/.installed

.PHONY: run test viz benchmark clean

run: $(INSTALLED)
	$(VENV)/bin/kedro run --pipeline=hard_setting

test: $(INSTALLED)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/pytest

# the map of the pipelines as a static site, with previews of what the last runs made
viz: $(INSTALLED)
	rm -rf build
	$(VENV)/bin/kedro viz build --include-previews
	@test -f build/api/deploy-viz-metadata
	@echo "The map is in $(CURDIR)/build (what no run has made yet has no preview). To look at it: $(VENV)/bin/python -m http.server 4141 --directory build, and open http://localhost:4141"

benchmark: $(INSTALLED)
	$(VENV)/bin/python benchmarks/speed.py

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed, $(PYTHON) is %s: make PYTHON=python3.11" % sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV)
