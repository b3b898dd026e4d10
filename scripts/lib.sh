# shellcheck shell=bash
# What deploy.sh and the scripts share. Sourcing it sets ROOT and VENV and does nothing visible.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Print a folder that a variable names: a relative one begins in the project's, wherever we were called.
from_root() {
  case $1 in
    /*) printf '%s\n' "$1" ;;
    *) printf '%s\n' "$ROOT/$1" ;;
  esac
}

VENV=$(from_root "${CORELANE_VENV:-.venv}")

# --- messages: to stderr, what was asked for goes to stdout ---

log::say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

# log::die CODE SENTENCE: 2 when the machine or the command line is to be changed, else 1.
log::die() {
  local code=$1
  shift
  printf '%s: error: %s\n' "${0##*/}" "$*" >&2
  exit "$code"
}

# Say where an unexpected failure was. One that ends with 2 has said its sentence already.
log::trap_errors() {
  set -o errtrace
  trap '(($? == 2)) || log::say "failed in ${BASH_SOURCE[0]##*/} line $LINENO"' ERR
}

# run COMMAND ...: every command that changes something goes through here; with DRY_RUN=1 it is only printed.
run() {
  if [[ ${DRY_RUN:-0} == 1 ]]; then
    printf '%q ' "$@"
    printf '\n'
  else
    "$@"
  fi
}

# --- Python ---

# The oldest that the package supports; pyproject.toml says the same.
python::is_usable() {
  "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1
}

# Print the interpreter to make the environment with: the one that CORELANE_PYTHON names, else python3, else a versioned one.
python::find() {
  local candidate
  if [[ -n ${CORELANE_PYTHON:-} ]]; then
    python::is_usable "$CORELANE_PYTHON" ||
      log::die 2 "CORELANE_PYTHON=$CORELANE_PYTHON is no Python of at least 3.10; name one that is, or unset it"
    command -v "$CORELANE_PYTHON"
    return
  fi
  for candidate in python3 python3.13 python3.12 python3.11 python3.10; do
    if python::is_usable "$candidate"; then
      command -v "$candidate"
      return
    fi
  done
  log::die 2 "no Python of at least 3.10 was found on PATH; install one, or name it with CORELANE_PYTHON"
}

# Print the interpreter to run the package with: the environment's if it is there, else any, which is enough for
# whatever needs the standard library alone.
python::best() {
  if python::is_usable "$VENV/bin/python"; then
    printf '%s\n' "$VENV/bin/python"
  else
    python::find
  fi
}

# corelane::exec VERB ...: become the command line, in the project's folder, installed or not.
corelane::exec() {
  local python
  python=$(python::best) || exit
  cd "$ROOT" || exit 1
  corelane::use_source
  exec "$python" -m corelane "$@"
}

corelane::use_source() {
  export PYTHONPATH=$ROOT/src${PYTHONPATH:+:$PYTHONPATH}
}
