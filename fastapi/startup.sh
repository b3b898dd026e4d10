#!/usr/bin/env bash
# The serving container's entry: become one core's server, so that SIGTERM reaches it and its exit code is ours.
set -o errexit -o nounset -o pipefail

exec python3 "$(dirname "${BASH_SOURCE[0]}")/fastapi-server.py" "$@"
