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
