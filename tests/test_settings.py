"""settings: files and environment become one frozen value, or one sentence that says what to mend."""

from __future__ import annotations

import os
import pickle
import shlex
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from corelane.errors import ConfigError
from corelane.keys import FILES, KEYS
from corelane.properties import parse_properties
from corelane.settings import Settings, frozen, load, proxy_environment, shell_lines, table, uncarried, written

PROJECT = Path(__file__).resolve().parents[1]
SOURCE = PROJECT / "src"


def folder(tmp_path: Path, config: str | bytes = "", docker: str | bytes = "", env: str | bytes = "") -> Path:
    for name, text in zip(FILES, (config, docker, env), strict=True):
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return tmp_path


def load_refusal(root: Path, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load(root, environ or {})
    return str(caught.value)


def run_module(*arguments: str, cwd: Path, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "corelane.settings", *arguments],
        cwd=cwd,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE), **(environ or {})},
        capture_output=True,
        check=False,
    )


def bash_value(line: str, name: str) -> str:
    """What `name` holds in a real bash after it evaluated `line`."""
    script = 'eval "$1"; printf %s "${!2}"'
    answer = subprocess.run(["bash", "-euc", script, "bash", line, name], capture_output=True, check=True)
    assert answer.stderr == b""
    return answer.stdout.decode("utf-8")


# ---- from files to settings --------------------------------------------------------------------------------


def test_every_key_is_a_field_and_every_field_a_key() -> None:
    """The table, the files and the code cannot drift apart."""
    assert {key.name for key in KEYS} == {field.name for field in fields(Settings)} - {"root", "source"}
    assert len({key.name for key in KEYS}) == len(KEYS)
    assert {key.file for key in KEYS} == set(FILES)


def test_the_committed_files_say_what_the_defaults_say(tmp_path: Path) -> None:
    """Deleting a line of the committed files changes nothing."""
    committed = load(PROJECT, {})
    defaults = load(folder(tmp_path), {})
    assert replace(committed, root=tmp_path, path_to_traced_models=tmp_path / "traced-models") == defaults
    assert committed.source["num_cores"].startswith("config.properties:")
    assert committed.source["chip_type"].startswith(".env:")


@pytest.mark.parametrize("name", FILES)
def test_bash_would_read_the_committed_files_alike(name: str) -> None:
    """They are plain enough that a shell that sources them all the same gets the same values."""
    for key, entry in parse_properties((PROJECT / name).read_bytes(), name).items():
        assert bash_value(f"source {shlex.quote(str(PROJECT / name))}", key) == entry.value


def test_the_defaults_are_typed(tmp_path: Path) -> None:
    """Nobody downstream parses a setting again."""
    settings = load(folder(tmp_path), {})
    assert settings.num_cores == 2
    assert settings.batch_sizes == (1, 8)
    assert settings.sequence_lengths == ()
    assert settings.path_to_traced_models == tmp_path / "traced-models"
    assert settings.request_timeout_ms == 30000
    assert settings.chip_type == "cpu"
    assert set(settings.source.values()) == {"default"}


@pytest.mark.parametrize(
    ("line", "value"),
    [
        pytest.param("num_cores=all", "all", id="all-cores"),
        pytest.param("num_cores = 3 # three", 3, id="number"),
        pytest.param("batch_sizes=8, 1,4,8", (1, 4, 8), id="ascending-and-distinct"),
        pytest.param("sequence_lengths=", (), id="no-lengths"),
        pytest.param("request_timeout_ms=0", 0, id="zero-is-no-deadline"),
        pytest.param("request_timeout_ms=off", 0, id="off-is-no-deadline"),
        pytest.param("request_timeout_ms=false", 0, id="false-is-no-deadline"),
        pytest.param("request_timeout_ms=none", 0, id="none-is-no-deadline"),
        pytest.param("path_to_traced_models=/srv/x/../models", Path("/srv/models"), id="absolute-path"),
        pytest.param('compiled_model="compiled-model-bs-1.pt"', "compiled-model-bs-1.pt", id="quoted-file"),
        pytest.param("model_name=bert#inf", "bert#inf", id="hash"),
    ],
)
def test_a_line_becomes_a_typed_value(tmp_path: Path, line: str, value: object) -> None:
    """One row for every kind of value."""
    name = line.split("=")[0].strip()
    settings = load(folder(tmp_path, config=line), {})
    assert getattr(settings, name) == value
    assert settings.source[name] == "config.properties:1"


@pytest.mark.parametrize(
    "line",
    [
        "num_cores=two",
        "num_cores=0",
        "num_cores=-1",
        "num_cores=",
        "num_cores=08",
        "num_cores=2.0",
        "num_cores=2\u00a0",
        "num_cores=２",
        "num_cores=1_000",
        "num_cores=99999999999999999999999",
        "num_cores=ALL",
        "batch_sizes=1,,8",
        "batch_sizes=",
        "batch_sizes=0",
        "sequence_lengths=128;384",
        "first_port=65536",
        "first_port=0",
        "gateway=on",
        "runtime=podman",
        "precision=fp16",
        "model_name=",
        "docker_container_name_prefix=Mine",
        "docker_container_name_prefix=-x",
        "path_to_traced_models=~/models",
        "bind_address=",
        "request_timeout_ms=30s",
    ],
)
def test_a_value_of_the_wrong_kind_names_place_key_value_and_what_would_do(tmp_path: Path, line: str) -> None:
    """The person can mend it from the sentence alone."""
    name, value = line.split("=")
    message = load_refusal(folder(tmp_path, config=line))
    assert message.startswith(f"config.properties:1: {name}={value!r} should be ")
    assert "correct it, or remove it for the default" in message


@pytest.mark.parametrize("name", FILES)
def test_a_byte_order_mark_does_not_cost_the_first_key(tmp_path: Path, name: str) -> None:
    """Windows editors write one; the value must not silently be the default."""
    first = {
        "config.properties": "num_cores=5",
        "docker.properties": "image_tag=latest",
        ".env": "CHIP_TYPE=inf2",
    }
    key = {"config.properties": "num_cores", "docker.properties": "image_tag", ".env": "chip_type"}[name]
    folder(tmp_path)
    (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + first[name].encode() + b"\n")
    settings = load(tmp_path, {})
    assert settings.source[key] == f"{name}:1"
    assert written(getattr(settings, key)) == first[name].split("=")[1]


@pytest.mark.parametrize(
    "line", ['export CHIP_TYPE="inf2"', "CHIP_TYPE='inf2'", "CHIP_TYPE: inf2", "CHIP_TYPE = inf2 # x"]
)
def test_the_chip_is_read_through_quotes_and_export(tmp_path: Path, line: str) -> None:
    """A chip type with its quotes would match no chip, much later."""
    assert load(folder(tmp_path, env=line), {}).chip_type == "inf2"


# ---- names nobody knows ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "place", "hint"),
    [
        pytest.param({"config": "a_typo=1"}, "config.properties:1", "no setting a_typo is known; correct", id="far"),
        pytest.param({"config": "\nnum_core=1"}, "config.properties:2", "did you mean num_cores;", id="near"),
        pytest.param({"config": "NUM_CORES=1"}, "config.properties:1", "did you mean num_cores;", id="capitals"),
        pytest.param({"config": "num-cores=1"}, "config.properties:1", "did you mean num_cores;", id="dash"),
        pytest.param({"config": "CORELANE_NUM_CORES=1"}, "config.properties:1", "did you mean num_cores;", id="prefix"),
        pytest.param({"config": "CHIP_TYPE=cpu"}, "config.properties:1", "belongs in .env, as CHIP_TYPE", id="env-key"),
        pytest.param({"config": "image_tag=x"}, "config.properties:1", "belongs in docker.properties", id="docker-key"),
        pytest.param({"env": "NUM_CORES=1"}, ".env:1", "belongs in config.properties, as num_cores", id="config-key"),
        pytest.param({"env": "chip_type=cpu"}, ".env:1", "did you mean CHIP_TYPE;", id="lower-case-in-env"),
        pytest.param({"env": "CHIPTYPE=cpu"}, ".env:1", "did you mean CHIP_TYPE;", id="near-in-env"),
        pytest.param(
            {"docker": "num_core=1"},
            "docker.properties:1",
            "num_cores of config.properties",
            id="near-elsewhere",
        ),
    ],
)
def test_an_unknown_key_is_answered_with_the_name_that_was_meant(
    tmp_path: Path, files: dict[str, str], place: str, hint: str
) -> None:
    """A typo that is accepted leaves its setting at the default in silence."""
    message = load_refusal(folder(tmp_path, **files))
    assert message.startswith(f"{place}: ")
    assert hint in message


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        pytest.param("CORELANE_NUM_CORE", "did you mean CORELANE_NUM_CORES;", id="near"),
        pytest.param("CORELANE_num_cores", "read from CORELANE_NUM_CORES;", id="lower-case"),
        pytest.param("CORELANE_CHIP_TYPE", "chip_type is read from CHIP_TYPE;", id="env-key"),
        pytest.param("CORELANE_HTTP_PROXY", "http_proxy is read from HTTP_PROXY;", id="proxy"),
        pytest.param("CORELANE_CONFIGS", "did you mean CORELANE_CONFIG;", id="tool-variable"),
        pytest.param("CORELANE_QQQQQQQQ", "no such setting is known; correct or unset it", id="far"),
    ],
)
def test_an_unknown_variable_of_ours_is_answered_with_the_name_that_was_meant(
    tmp_path: Path, variable: str, hint: str
) -> None:
    """A misspelled variable would otherwise do nothing, in silence."""
    message = load_refusal(folder(tmp_path), {variable: "1"})
    assert message.startswith(f"environment {variable}: ")
    assert hint in message


@pytest.mark.parametrize(
    "variable",
    [
        "CORELANE_VENV",
        "CORELANE_DEV_VENV",
        "CORELANE_PYTHON",
        "CORELANE_SERVICE_HOST",
        "CORELANE_PORT",
        "CORELANE_SERVICE_PORT_HTTP",
        "CORELANE_PORT_8080_TCP_ADDR",
        "CORELANE_CORE_0_SERVICE_HOST",
        "PATH",
    ],
)
def test_variables_that_are_no_settings_of_ours_are_left_alone(tmp_path: Path, variable: str) -> None:
    """Scripts use some, and Kubernetes injects others next to a Service that is called corelane."""
    assert load(folder(tmp_path), {variable: "tcp://10.0.0.1:80"}) == load(tmp_path, {})


# ---- which source wins -------------------------------------------------------------------------------------


def test_the_environment_beats_the_file_and_the_file_the_default(tmp_path: Path) -> None:
    """The precedence of the documentation, in the order of its list."""
    root = folder(tmp_path, config="num_cores=3\nfirst_port=9000", env="CHIP_TYPE=inf1")
    settings = load(root, {"CORELANE_NUM_CORES": "all", "CHIP_TYPE": "trn1"})
    assert (settings.num_cores, settings.source["num_cores"]) == ("all", "environment CORELANE_NUM_CORES")
    assert (settings.first_port, settings.source["first_port"]) == (9000, "config.properties:2")
    assert (settings.chip_type, settings.source["chip_type"]) == ("trn1", "environment CHIP_TYPE")
    assert (settings.gateway_port, settings.source["gateway_port"]) == (8080, "default")


def test_every_setting_goes_through_the_environment_unchanged(tmp_path: Path) -> None:
    """A supervisor may hand a server its settings as variables."""
    settings = load(folder(tmp_path), {})
    environ = {key.variables[-1]: written(getattr(settings, key.name)) for key in KEYS}
    again = load(tmp_path, environ)
    assert again == settings
    assert all(source.startswith("environment ") for source in again.source.values())


def test_a_wrong_value_in_the_environment_names_the_variable(tmp_path: Path) -> None:
    """The file is right, so pointing at it would send the person the wrong way."""
    message = load_refusal(folder(tmp_path, config="num_cores=2"), {"CORELANE_NUM_CORES": "two"})
    assert message.startswith("environment CORELANE_NUM_CORES: num_cores='two' should be a number")
    assert "unset it for the default 2" in message


@pytest.mark.parametrize(
    ("variable", "value", "shown"),
    [
        pytest.param("CHIP_TYPE", '"inf2"', 'CHIP_TYPE is "inf2" with its quotes', id="double-quotes"),
        pytest.param("CORELANE_MODEL_NAME", "'demo-qa'", "is 'demo-qa' with its quotes", id="single-quotes"),
        pytest.param("CORELANE_MODEL_NAME", "demo-qa # demo", "'demo-qa # demo'", id="comment"),
        pytest.param("CORELANE_MODEL_NAME", "demo-qa ", "'demo-qa '", id="blank"),
        pytest.param("CORELANE_MODEL_NAME", "demo\nqa", r"'demo\nqa'", id="line-end"),
        pytest.param("CORELANE_MODEL_NAME", "demo\udcff", r"is not UTF-8", id="undecodable"),
        pytest.param("CORELANE_CONFIG", '"other.properties"', '"other.properties" with its quotes', id="file-name"),
    ],
)
def test_what_an_env_file_reader_left_around_a_value_is_shown_not_guessed(
    tmp_path: Path, variable: str, value: str, shown: str
) -> None:
    """`docker run --env-file` keeps quotes and comments, and the value then fails far from its cause."""
    message = load_refusal(folder(tmp_path), {variable: value})
    assert message.startswith(f"environment {variable}")
    assert shown in message


def test_a_proxy_is_taken_in_both_spellings_and_lower_case_wins(tmp_path: Path) -> None:
    """As in curl and Python, so that our downloads go where theirs go."""
    root = folder(tmp_path, env="http_proxy=http://file:1\nHTTPS_PROXY=http://file:2")
    assert load(root, {}).http_proxy == "http://file:1"
    assert load(root, {}).https_proxy == "http://file:2"
    assert load(root, {"HTTP_PROXY": "http://b:1"}).http_proxy == "http://b:1"
    assert load(root, {"HTTP_PROXY": "http://b:1", "http_proxy": "http://a:1"}).http_proxy == "http://a:1"


def test_one_key_in_two_spellings_of_one_file_is_a_duplicate(tmp_path: Path) -> None:
    """Neither line is the obvious winner."""
    message = load_refusal(folder(tmp_path, env="http_proxy=a\nHTTP_PROXY=b"))
    assert message.startswith(".env:2: HTTP_PROXY stands already in line 1")


def test_two_files_that_disagree_about_one_key_are_named_both(tmp_path: Path) -> None:
    """The registry may stand in docker.properties or in .env."""
    message = load_refusal(folder(tmp_path, docker="registry=a", env="REGISTRY=b"))
    assert ".env:1: registry='b', but docker.properties:1 says 'a'" in message


def test_what_downloads_gets_the_proxies_in_both_spellings(tmp_path: Path) -> None:
    """No tool reads .env by itself, and some look at one spelling alone; what is not set stays as it is."""
    settings = load(folder(tmp_path, env="HTTPS_PROXY=http://file:2"), {"NO_PROXY": "localhost"})
    found = proxy_environment(settings)
    https = {"https_proxy": "http://file:2", "HTTPS_PROXY": "http://file:2"}
    assert found == {**https, "no_proxy": "localhost", "NO_PROXY": "localhost"}


# What people put around and into values: blanks, quotes, comments, what a shell would expand, a line that goes on.
@pytest.mark.parametrize(
    "value", ["a # b", "#a", " a ", "it's", 'a "b" c', "'a'", '"', "$HOME", "`id`", "a\\", "%(x)s=1: é", ""]
)
def test_frozen_settings_are_read_back_as_they_were(tmp_path: Path, value: str) -> None:
    """A restarted server has them from its own files, in a folder of its own."""
    settings = replace(load(folder(tmp_path), {"CHIP_TYPE": "trn1"}), task=value)
    other = tmp_path / "other"
    other.mkdir()
    for name, text in frozen(settings, compiled_model="demo@3").items():
        (other / name).write_text(text, encoding="utf-8")
    assert load(other, {}) == replace(settings, root=other, compiled_model="demo@3")


def test_a_password_in_a_url_is_not_shown(tmp_path: Path) -> None:
    """Messages and reprs end up in logs."""
    root = folder(tmp_path, env="HTTPS_PROXY=http://me:secret@proxy:1")
    assert "secret" not in repr(load(root, {}))
    assert "secret" not in load_refusal(root, {"HTTPS_PROXY": '"http://me:secret@proxy:1"'})
    assert "secret" not in load_refusal(folder(tmp_path, docker="pip_index_url=http://me:secret@index/"))


# ---- files that are not there ------------------------------------------------------------------------------


def test_a_missing_config_file_says_what_to_do(tmp_path: Path) -> None:
    """Most often the command was started in the wrong folder."""
    message = load_refusal(tmp_path)
    assert message == (
        f"{tmp_path / 'config.properties'} does not exist; go to the project's folder, restore the file, "
        "or name one with CORELANE_CONFIG"
    )


def test_the_other_two_files_are_optional(tmp_path: Path) -> None:
    """An image carries only what it needs."""
    (tmp_path / "config.properties").write_text("num_cores=1")
    assert load(tmp_path, {}).num_cores == 1


def test_another_file_can_be_named_from_the_root_or_absolutely(tmp_path: Path) -> None:
    """Two deployments live side by side with a file each."""
    root = folder(tmp_path, config="num_cores=1")
    (root / "second.properties").write_text("num_cores=7\n")
    assert load(root, {"CORELANE_CONFIG": "second.properties"}).num_cores == 7
    settings = load(root, {"CORELANE_CONFIG": str(root / "second.properties")})
    assert settings.source["num_cores"] == f"{root / 'second.properties'}:1"
    assert settings.root == root


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        pytest.param("none.properties", "does not exist", id="missing"),
        pytest.param("", "is empty", id="empty"),
        pytest.param(".", "cannot be read", id="folder"),
        pytest.param("/dev/zero", "bytes, which no configuration has", id="endless"),
    ],
)
def test_a_named_file_that_cannot_be_read_is_an_error(tmp_path: Path, name: str, reason: str) -> None:
    """Falling back to config.properties would start the wrong deployment."""
    assert reason in load_refusal(folder(tmp_path), {"CORELANE_CONFIG": name})


# ---- what this version does not carry ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ({"config": "http_workers=2"}, "http_workers"),
        ({"config": "runtime=docker"}, "runtime"),
        ({"config": "cores_per_server=2"}, "cores_per_server"),
        ({"config": "batch_wait_ms=1"}, "batch_wait_ms"),
        ({"config": "api_keys_file=keys"}, "api_keys_file"),
        ({"config": "compiler_args=-O1"}, "compiler_args"),
        ({"config": "docker_image_name_prefix=mine"}, "docker_image_name_prefix"),
        ({"config": "instance_type=inf2.xlarge"}, "instance_type"),
        ({"docker": "image_tag=v1"}, "image_tag"),
        ({"docker": "registry: host.example:5000/x"}, "registry"),
        ({"env": "REGISTRY=host.example:5000/x"}, "registry"),
    ],
)
def test_a_setting_that_would_do_nothing_is_refused(tmp_path: Path, files: dict[str, str], name: str) -> None:
    """Accepting it in silence would promise what does not happen."""
    message = load_refusal(folder(tmp_path, **files))
    assert f"{name}=" in message
    assert "is not carried by this version yet" in message


def test_writing_such_a_setting_down_at_its_default_is_fine(tmp_path: Path) -> None:
    """A file may spell out everything."""
    load(
        folder(tmp_path, config="http_workers=1\nruntime=process\nbatch_wait_ms=0", docker="image_tag=latest"),
        {},
    )


def test_what_other_tools_read_is_accepted_and_shown_as_not_read(tmp_path: Path) -> None:
    """A machine's .env names its region and profile; the table does not promise that anything here looks at them."""
    env = "AWS_REGION=eu-central-1\nAWS_DEFAULT_REGION=eu-central-1\nAWS_PROFILE=me"
    assert load(folder(tmp_path, env=env), {"AWS_PROFILE": "other"}).aws_profile == "other"
    rows = [row for row in table().splitlines() if "`AWS_" in row]
    assert len(rows) == 3
    assert all(row.endswith("| not read yet, never refused |") for row in rows)


def test_a_variable_that_other_tools_share_is_not_refused(tmp_path: Path) -> None:
    """REGISTRY in somebody's shell was not said to us; CORELANE_REGISTRY was."""
    assert load(folder(tmp_path), {"REGISTRY": "host.example/x"}).registry == "host.example/x"
    assert "not carried" in load_refusal(tmp_path, {"CORELANE_REGISTRY": "host.example/x"})


def test_one_who_only_looks_may_see_what_is_not_carried(tmp_path: Path) -> None:
    """Looking accepts nothing, but it is said."""
    settings = load(folder(tmp_path, docker="registry: host.example:5000/team%2Frepo"), {}, refuse_uncarried=False)
    assert settings.registry == "host.example:5000/team%2Frepo"
    assert len(uncarried(settings)) == 1


# ---- the command -------------------------------------------------------------------------------------------


_WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"], exclude_characters="\ufeff"))


@given(_WORDS)
@hypothesis_settings(deadline=None, max_examples=40)
def test_bash_holds_the_value_that_python_holds(value: str) -> None:
    """Bash asks this reader, so both agree on every value, whatever characters it has."""
    settings = replace(load(PROJECT, {}), model_name=value)
    assert bash_value("\n".join(shell_lines(settings, ["model_name"])), "model_name") == value


def test_bash_gets_all_settings_through_eval(tmp_path: Path) -> None:
    """The real way: bash evaluates what the command prints."""
    nasty = 'it\'s a "model" $HOME `id` 東京 # \\ *'
    quoted = nasty.replace('"', "").replace("'", "")
    root = folder(tmp_path, config=f"model_name='{quoted}'\nbatch_sizes=8,1\nnum_cores=all")
    script = (
        f'lines=$({shlex.quote(sys.executable)} -m corelane.settings --root "$1" --shell); eval "$lines"; '
        'printf "%s|%s|%s|%s" "$model_name" "$batch_sizes" "$num_cores" "$path_to_traced_models"'
    )
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE), "LC_ALL": "C"}
    answer = subprocess.run(["bash", "-euc", script, "bash", str(root)], env=environ, capture_output=True, check=True)
    assert answer.stdout.decode() == f"{quoted}|1,8|all|{root / 'traced-models'}"
    assert answer.stderr == b""


def test_the_shell_lines_of_named_keys_come_in_the_order_asked(tmp_path: Path) -> None:
    """A script asks for what it needs."""
    answer = run_module("--shell", "gateway_port", "chip_type", cwd=folder(tmp_path))
    assert (answer.returncode, answer.stdout) == (0, b"gateway_port=8080\nchip_type=cpu\n")


def test_a_value_not_carried_yet_is_printed_for_bash_with_a_word_beside_it(tmp_path: Path) -> None:
    """The registry keeps its port; that nothing is pushed there yet stands on stderr, out of eval's way."""
    answer = run_module("--shell", "registry", cwd=folder(tmp_path, docker="registry: host.example:5000/x"))
    assert (answer.returncode, answer.stdout) == (0, b"registry=host.example:5000/x\n")
    assert answer.stderr.startswith(b"corelane: docker.properties:1: registry=")


@pytest.mark.parametrize(
    ("arguments", "environ", "message"),
    [
        pytest.param(["--shell", "num_core"], {}, b"did you mean num_cores", id="unknown-name"),
        pytest.param(["--shell"], {"CORELANE_NUM_CORES": "x"}, b"environment CORELANE_NUM_CORES", id="bad-value"),
        pytest.param(["--shell"], {"CORELANE_CONFIG": "gone"}, b"corelane: error: environment", id="prefix"),
        pytest.param(["--shell"], {"CORELANE_CONFIG": "gone"}, b"which does not exist", id="missing-file"),
        pytest.param([], {"CORELANE_HTTP_WORKERS": "2"}, b"not carried", id="not-carried"),
    ],
)
def test_a_configuration_error_is_one_sentence_and_exit_code_2(
    tmp_path: Path, arguments: list[str], environ: dict[str, str], message: bytes
) -> None:
    """Scripts stop on it, and nothing half-printed reaches eval."""
    answer = run_module(*arguments, cwd=folder(tmp_path), environ=environ)
    assert (answer.returncode, answer.stdout) == (2, b"")
    assert message in answer.stderr
    assert answer.stderr.count(b"\n") == 1


def test_the_table_has_a_row_for_every_key_and_needs_no_files(tmp_path: Path) -> None:
    """The README's table is made from it."""
    answer = run_module("--table", cwd=tmp_path)
    rows = answer.stdout.decode().splitlines()
    assert rows == table().splitlines()
    assert rows[0] == "| key | file | default | meaning | carried |"
    assert len(rows) == len(KEYS) + 2
    assert all(row.count("|") - row.count("\\|") == 6 for row in rows)


# ---- the module itself -------------------------------------------------------------------------------------


def test_settings_need_the_standard_library_alone() -> None:
    """`--dry-run` works before anything is installed: -S hides every installed package."""
    code = f"import sys; sys.path.insert(0, {str(SOURCE)!r}); import corelane.settings, corelane.topology"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)


def test_settings_survive_pickling(tmp_path: Path) -> None:
    """A spawned process gets them that way."""
    settings = load(folder(tmp_path), {})
    assert pickle.loads(pickle.dumps(settings)) == settings
