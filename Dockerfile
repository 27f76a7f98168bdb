# docker build -t mpfm . && docker run -v "$PWD/data:/project/data" mpfm kedro run --pipelines=hard_setting
FROM python:3.11-slim
RUN apt-get update && apt-get install -y --no-install-recommends git && rm -rf /var/lib/apt/lists/*
WORKDIR /project
# the environment first: a change of the code does not install it again
COPY pyproject.toml constraints.txt README.md ./
RUN mkdir -p src/mpfm_kedro && touch src/mpfm_kedro/__init__.py \
    && pip install --no-cache-dir --constraint constraints.txt --editable '.[app]'
COPY . .
# the app listens on 127.0.0.1 of the container alone, see SECURITY.md
CMD ["kedro", "run", "--pipelines=hard_setting"]
