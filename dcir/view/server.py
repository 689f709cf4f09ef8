"""The server of `dcir view`: on this machine alone, at a port that is free, for whoever has the token in its address."""

from __future__ import annotations

import contextlib
import importlib.util
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dcir.errors import Unsupported
from dcir.view.security import Guard, new_token

if TYPE_CHECKING:
    from dcir.view.application import Workshop

_START_SECONDS = 10.0


def check_installed() -> None:
    """Refuse to serve without a server.

    Raises:
        Unsupported: the packages of the extra "view" are not installed.
    """
    missing = [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        raise Unsupported(
            f"dcir view serves pages with Starlette and uvicorn, and {' and '.join(missing)} cannot be found",
            hint="pip install 'dcir[view]', or dcir view MODEL -o report.html",
        )


class Server:
    """Serves sessions until it is closed.

    Attributes:
        address: what to open, with the token behind the #.
        port, token: parts of it.

    Args:
        sessions: one record, or two to be compared.
        workshop: makes variants of the first; None where sessions are only looked at.

    Raises:
        Unsupported: the packages of the extra "view" are not installed.
    """

    def __init__(self, sessions: Sequence[Mapping[str, Any]], workshop: Workshop | None = None) -> None:
        check_installed()
        import uvicorn

        from dcir.view.application import Interface

        self._interface = Interface(sessions, workshop)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen()  # who opens the address at once waits until it is served
        self.port: int = self._socket.getsockname()[1]
        self.token = new_token()
        application = Guard(self._interface.application(), self.port, self.token)
        self._server = uvicorn.Server(
            uvicorn.Config(
                application, log_level="critical", access_log=False, lifespan="off", ws="none", http="h11", loop="asyncio",
                server_header=False, date_header=False, proxy_headers=False, timeout_graceful_shutdown=1,
            )
        )  # fmt: skip
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"<dcir view at {self.address}>"

    @property
    def address(self) -> str:
        """What to open in a browser."""
        return f"http://127.0.0.1:{self.port}/#token={self.token}"

    def run(self) -> None:
        """Serve until somebody interrupts this."""
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self.close()

    def start(self) -> Server:
        """Serve beside what this process does; until ``close``, or the process ends."""
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="dcir view", daemon=True)
        self._thread.start()
        stop = time.monotonic() + _START_SECONDS
        while not self._server.started and self._thread.is_alive() and time.monotonic() < stop:
            time.sleep(0.01)
        return self

    def close(self) -> None:
        """Serve no more."""
        self._interface.jobs.close()
        self._server.should_exit = True
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._socket.close()


@contextlib.contextmanager
def serving(sessions: Sequence[Mapping[str, Any]], workshop: Workshop | None = None) -> Iterator[Server]:
    """A server that is there while this lasts."""
    server = Server(sessions, workshop).start()
    try:
        yield server
    finally:
        server.close()
