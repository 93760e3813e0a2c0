"""Servers for a test, run by a thread."""

import threading
from contextlib import contextmanager


@contextmanager
def running(server):
    """Let a server answer until the block is left, however it is left; close it then."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    with server:
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
