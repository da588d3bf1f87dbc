# One image for every role; the command selects it (`server`, `worker`, `monitor`, `preprocess`, ...).
# Libraries, program and compiled loops are three layers, so a change of the program rebuilds only the last two.
FROM python:3.11-slim

ENV PATH=/opt/glovewire/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    NUMBA_CACHE_DIR=/var/cache/glovewire/numba \
    MPLCONFIGDIR=/var/cache/glovewire/matplotlib \
    HF_HOME=/var/cache/glovewire/datasets

WORKDIR /opt/glovewire/source
COPY pyproject.toml .
RUN python -m venv /opt/glovewire \
 && python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
e = p['optional-dependencies']; print(*p['dependencies'], *e['web'], *e['metrics'], *e['export'], sep='\n')" > /tmp/libraries \
 && pip install --no-cache-dir --quiet --disable-pip-version-check -r /tmp/libraries \
 && rm /tmp/libraries

# Docker initialises named volumes from these folders, so they belong to the user that the roles run as.
RUN useradd --uid 10001 --create-home glovewire \
 && install -d -o glovewire -g glovewire /data /runs /keys /worker-keys /monitor-keys /var/cache/glovewire

COPY . .
RUN pip install --no-cache-dir --quiet --disable-pip-version-check --no-deps .

USER 10001:10001
WORKDIR /home/glovewire
# A tiny training compiles every loop into the image. On another kind of processor they compile again, into the same cache folder.
RUN python -c "import this" > zen.txt \
 && glovewire preprocess zen.txt --out zen --processes 1 \
 && glovewire train zen --out run --workers 1 --dim 16 --epochs 1 --quiet \
 && glovewire train zen --out run-minibatch --workers 1 --dim 16 --epochs 200 --quiet --schedule minibatch \
 && rm -rf zen.txt zen run run-minibatch

# Query the shard in this container; other roles set GLOVEWIRE_HEALTH to the address of one.
ENV GLOVEWIRE_HEALTH=tcp://127.0.0.1:5555
HEALTHCHECK --interval=15s --timeout=10s --start-period=60s --retries=3 \
  CMD ["sh", "-c", "exec glovewire stats --timeout 5 \"$GLOVEWIRE_HEALTH\""]

ENTRYPOINT ["glovewire"]
CMD ["--help"]
