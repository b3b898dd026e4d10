# shellcheck shell=bash
# The developers' virtual environment, for scripts/check and scripts/test. Source it after lib.sh.
#
# It stands in .venv-dev, or where CORELANE_DEV_VENV says, and is brought up to date whenever what goes into it changes.

DEVENV=$(from_root "${CORELANE_DEV_VENV:-.venv-dev}")

# What the environment follows from: the project file, the constraints, this checkout's place and the Python.
devenv::fingerprint() {
  local python=$1
  "$python" - "$ROOT" <<'PYTHON'
import hashlib, pathlib, sys

root = pathlib.Path(sys.argv[1])
parts = [sys.version, sys.base_prefix, str(root)]
parts += [(root / name).read_text(encoding="utf-8") for name in ("pyproject.toml", "deploy/constraints/cpu.txt")]
print(hashlib.sha256("\0".join(parts).encode()).hexdigest())
PYTHON
}

# Bring the environment up to date if it is not, and put it first on PATH.
devenv::enter() {
  local python wanted found='' marker=$DEVENV/corelane-dev
  python=$(python::find)
  wanted=$(devenv::fingerprint "$python")
  if [[ -f $marker && -x $DEVENV/bin/python ]]; then found=$(<"$marker"); fi
  if [[ $found != "$wanted" ]]; then devenv::make "$python" "$wanted" "$marker"; fi
  export VIRTUAL_ENV=$DEVENV
  export PATH=$DEVENV/bin:$PATH
  unset PYTHONHOME
}

devenv::make() {
  local python=$1 wanted=$2 marker=$3
  if [[ -e $DEVENV && ! -f $DEVENV/pyvenv.cfg ]]; then
    log::die 2 "$DEVENV exists and is no virtual environment; remove it, or name another with CORELANE_DEV_VENV"
  fi
  log::say "bringing $DEVENV up to date; once for each change of pyproject.toml, its constraints or Python"
  rm -f -- "$marker"
  "$python" -m venv "$DEVENV" ||
    log::die 2 "the virtual environment $DEVENV could not be made; on Debian, apt-get install python3-venv helps"
  "$DEVENV/bin/python" -m pip install --quiet --quiet --disable-pip-version-check \
    --constraint "$ROOT/deploy/constraints/cpu.txt" --editable "${ROOT}[dev]" ||
    log::die 1 "pip could not install the package into $DEVENV; its own words stand above"
  printf '%s\n' "$wanted" >"$marker"
}
