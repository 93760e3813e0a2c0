"""The page of runs on an address of this machine: made anew whenever a record has changed."""

import errno
import hashlib
import sys
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any

from classgrad.checkpoints.lock import in_use
from classgrad.errors import UserError
from classgrad.report.page import Live, page, waiting_page
from classgrad.report.page.summary import PublishedLine, refuse_huge
from classgrad.report.records import label, record_files
from classgrad.runs.record import RunRecord

HOST = "127.0.0.1"  # nobody on another machine can ask
PORT, TRIES = 8123, 20
NAMES = ("localhost", HOST)


class WatchedRuns:
    """The page of what is in some folders now, made anew only when a record has changed.

    A folder may come later, and a record may be damaged.
    """

    def __init__(self, runs: Sequence[Path], published: Sequence[PublishedLine] = ()) -> None:
        self.runs = list(runs)
        self.published = published
        self.lock = Lock()  # two tabs that ask at once get the page made once
        self.made = "", ""

    def files(self) -> list[Path]:
        """Return the records there are now."""
        return [file for file in record_files(self.runs) if file.is_file()]

    def version(self) -> str:
        """Return what changes when a record comes, goes or changes, and when its run ends."""
        seen = hashlib.sha256()
        for file in self.files():
            try:
                state = file.stat()
            except OSError:  # it has gone meanwhile
                continue
            known = str(file), state.st_mtime_ns, state.st_size, in_use(file.parent)
            seen.update(repr(known).encode())
        return seen.hexdigest()[:16]

    def page(self) -> str:
        """Return the page of the records as they are now."""
        with self.lock:
            version = self.version()
            if self.made[0] != version:
                self.made = version, self.make(version)
            return self.made[1]

    def make(self, version: str) -> str:
        """Make the page of what can be read, with a note on what cannot."""
        records, cut_short, notes = [], [], []
        for file in self.files():
            try:
                record = RunRecord.load(file)
                refuse_huge(record)
                records.append(record)
                cut_short.append(not in_use(file.parent))
            except UserError as error:
                notes.append(f"Left out: {error}")
        unfinished = [
            f"{label(record, records)} on {record.benchmark}, seed {record.seed}: "
            f"{len(record.accuracy_matrix)} of {len(record.tasks)} tasks learnt"
            + (", cut short: the command that began it resumes it" if cut else "")
            for record, cut in zip(records, cut_short, strict=True)
            if not record.complete
        ]
        live = Live(version, [*unfinished, *notes])
        begun = [record for record in records if record.accuracy_matrix]
        return page(begun, published=self.published, live=live) if begun else waiting_page(live)


class Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD of the page and of its version, and nothing else."""

    server: "Server"
    timeout = 10  # seconds that a connection may say nothing
    server_version, sys_version = "classgrad", ""

    def do_GET(self) -> None:
        """Answer with the page or with its version."""
        if not is_local(self.headers.get_all("Host", [])):
            return self.answer(HTTPStatus.FORBIDDEN, "this address is for localhost only\n")
        if self.path == "/":
            return self.answer(HTTPStatus.OK, self.server.watched.page(), "text/html")
        if self.path == "/version":
            return self.answer(HTTPStatus.OK, self.server.watched.version())
        return self.answer(HTTPStatus.NOT_FOUND, "there is only /\n")

    do_HEAD = do_GET

    def answer(self, status: HTTPStatus, text: str, kind: str = "text/plain") -> None:
        """Send an answer that nobody keeps, and that no page of another site can read or frame."""
        body = text.encode(errors="replace")  # names of folders need not be text
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
    """Serves what is watched; closed by leaving a with block."""

    allow_reuse_port = False  # two servers on one port would answer in turns

    def __init__(self, watched: WatchedRuns, port: int) -> None:
        super().__init__((HOST, port), Handler)
        self.watched = watched

    @property
    def address(self) -> str:
        """Where a browser finds it."""
        return f"http://{HOST}:{self.server_port}/"

    def handle_error(self, *request: Any) -> None:
        """Keep the terminal quiet when a browser goes away in the middle of an answer.

        So does this process when it is asked to: it closes a connection that a thread just opens.
        """
        error = sys.exception()
        closed = isinstance(error, OSError) and error.errno == errno.EBADF
        if not closed and not isinstance(error, ConnectionError):
            super().handle_error(*request)


def open_server(watched: WatchedRuns, port: int | None = None) -> Server:
    """Return a server at a port: any free one for 0, and 8123 or the next free one for None."""
    for number in range(PORT, PORT + TRIES) if port is None else [port]:
        try:
            return Server(watched, number)
        except OSError as error:
            reason = error.strerror
    ports = f"port {port}" if port is not None else f"ports {PORT} to {number}"
    raise UserError(f"{ports} cannot be used ({reason}): take port 0 for any that is free")


def is_local(hosts: list[str]) -> bool:
    """Tell whether a request names this machine as its own browser does.

    Another site can let a name of its own point here, but that name is then in the request.

    >>> is_local(["localhost:8123"]), is_local(["127.0.0.1"]), is_local(["localhost.evil.org"])
    (True, True, False)
    """
    if len(hosts) != 1:
        return False
    name, _, port = hosts[0].partition(":")
    return name.lower() in NAMES and (port.isdecimal() or hosts[0] == name)
