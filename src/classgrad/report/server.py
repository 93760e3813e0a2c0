"""A local web server of the page of runs, which is made again whenever a record has changed."""

import errno
import hashlib
import sys
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any

from classgrad.checkpoints.lock import in_use
from classgrad.errors import UserError
from classgrad.report.lines import ExperimentLine
from classgrad.report.names import names
from classgrad.report.page import Live, page, waiting_page
from classgrad.report.page.summary import refuse_huge
from classgrad.report.records import record_files, stream_name
from classgrad.runs.record import RunRecord

HOST = "127.0.0.1"  # not reachable from other machines
PORT, TRIES = 8123, 20
NAMES = ("localhost", HOST)
# Returns the lines of experiments that some runs can be of.
LinesOf = Callable[[Sequence[RunRecord]], Sequence[ExperimentLine]]


class WatchedRuns:
    """The page of the runs in some folders, made again only when a record has changed.

    Folders need not exist yet, and records may be damaged.
    """

    def __init__(self, runs: Sequence[Path], lines_of: LinesOf = lambda records: []) -> None:
        self.runs = list(runs)
        self.lines_of = lines_of
        self.lock = Lock()  # for two tabs that ask at once the page is made once
        self.cached = "", ""  # version and page

    def files(self) -> list[Path]:
        """Return the records that exist now."""
        return [file for file in record_files(self.runs) if file.is_file()]

    def version(self) -> str:
        """Return a digest that changes when a record comes, goes or changes, or when a run ends."""
        digest = hashlib.sha256()
        for file in self.files():
            try:
                status = file.stat()
            except OSError:  # it was removed meanwhile
                continue
            state = str(file), status.st_mtime_ns, status.st_size, in_use(file.parent)
            digest.update(repr(state).encode())
        return digest.hexdigest()[:16]

    def page(self) -> str:
        """Return the page of the records as they are now."""
        with self.lock:
            version = self.version()
            if self.cached[0] != version:
                self.cached = version, self.make(version)
            return self.cached[1]

    def make(self, version: str) -> str:
        """Make the page of all readable records, with notes on the others."""
        records, cut_short, notes = [], [], []
        for file in self.files():
            try:
                record = RunRecord.load(file)
                refuse_huge(record)
                records.append(record)
                cut_short.append(not in_use(file.parent))
            except UserError as error:
                notes.append(f"Left out: {error}")
        lines = self.lines_of(records)
        unfinished = [
            f"{name} on {stream_name(record)}, seed {record.seed}: "
            f"{len(record.accuracy_matrix)} of {len(record.tasks)} tasks learnt"
            + (", cut short: repeat its command to resume it" if cut else "")
            for name, record, cut in zip(names(records, lines), records, cut_short, strict=True)
            if not record.complete
        ]
        live = Live(version, [*unfinished, *notes])
        begun = [record for record in records if record.accuracy_matrix]
        return page(begun, published=lines, live=live) if begun else waiting_page(live)


class Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD requests for the page and for its version, and no others."""

    server: "Server"
    timeout = 10  # seconds that a connection may be silent
    server_version, sys_version = "classgrad", ""

    def do_GET(self) -> None:
        """Send the page or its version."""
        if not is_local(self.headers.get_all("Host", [])):
            return self.answer(HTTPStatus.FORBIDDEN, "this address is for localhost only\n")
        if self.path == "/":
            return self.answer(HTTPStatus.OK, self.server.watched.page(), "text/html")
        if self.path == "/version":
            return self.answer(HTTPStatus.OK, self.server.watched.version())
        return self.answer(HTTPStatus.NOT_FOUND, "there is only /\n")

    do_HEAD = do_GET

    def answer(self, status: HTTPStatus, text: str, kind: str = "text/plain") -> None:
        """Send a response that is not cached, and that no other site can read or embed."""
        body = text.encode(errors="replace")  # folder names need not be valid UTF-8
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", "frame-ancestors 'none'")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Keep the terminal quiet: a page that is open asks every two seconds."""


class Server(ThreadingHTTPServer):
    """Serves the page of watched runs; a context manager, which closes it."""

    allow_reuse_port = False  # two servers on one port would answer in turns

    def __init__(self, watched: WatchedRuns, port: int) -> None:
        super().__init__((HOST, port), Handler)
        self.watched = watched

    @property
    def address(self) -> str:
        """The URL for a browser."""
        return f"http://{HOST}:{self.server_port}/"

    def handle_error(self, *request: Any) -> None:
        """Print nothing when a browser closes its connection in the middle of a response.

        Nor when this process is stopped and closes a connection that a thread is just opening.
        """
        error = sys.exception()
        closed = isinstance(error, OSError) and error.errno == errno.EBADF
        if not closed and not isinstance(error, ConnectionError):
            super().handle_error(*request)


def open_server(watched: WatchedRuns, port: int | None = None) -> Server:
    """Return a server on a port: any free port for 0; 8123 or the next free one for None."""
    for number in range(PORT, PORT + TRIES) if port is None else [port]:
        try:
            return Server(watched, number)
        except OSError as error:
            reason = error.strerror
    ports = f"port {port}" if port is not None else f"ports {PORT} to {number}"
    raise UserError(f"{ports} cannot be used ({reason}): give port 0 for any free port")


def is_local(hosts: list[str]) -> bool:
    """Tell whether the Host header of a request is this machine's.

    Another site can point its own name to this address (DNS rebinding), but then the header has
    that name.

    >>> is_local(["localhost:8123"]), is_local(["127.0.0.1"]), is_local(["localhost.evil.org"])
    (True, True, False)
    """
    if len(hosts) != 1:
        return False
    name, _, port = hosts[0].partition(":")
    return name.lower() in NAMES and (port.isdecimal() or hosts[0] == name)
