"""Code for the top of a child process: it notes every attempt to use the network, and lets none through."""

from __future__ import annotations

WATCH = '''
import socket, threading
attempts = []
def refuse(*arguments, **named):
    attempts.append(str(arguments))
    raise OSError("no network here")
for name in ("getaddrinfo", "gethostbyname", "create_connection"):
    setattr(socket, name, refuse)
socket.socket.connect = refuse
def finished():
    """All attempts, also those of threads that are still running."""
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            thread.join(10)
    return attempts
'''

# A trace of the configuration in the folder given, watched.
OFFLINE_TRACE = (
    WATCH
    + """
import sys
from pathlib import Path
from corelane.settings import load
from corelane.tracing.trace import trace
trace(load(Path(sys.argv[1]), {}), progress=print)
print("attempts:", finished())
"""
)
