"""Work that the server of `dcir view` does one piece after the other on a thread of its own, and the events that tell pages of it."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dcir.errors import DcirError

_LOG = logging.getLogger(__name__)
_STILL_HERE_SECONDS = 15.0
_MOST_WAITING = 1000

Progress = Callable[[str, int, int], None]


class Jobs:
    """A queue of work. All of it runs on one thread: what it compiles and measures must not run at once."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "dcir view")
        self._numbers = itertools.count(1)
        self._listeners: set[asyncio.Queue[dict[str, Any] | None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, work: Callable[[], Any]) -> Any:
        """Do something, and wait for it."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def start(self, variant: int, work: Callable[[Progress], Any]) -> int:
        """Do something that tells its progress, later; the number of the job."""
        number, loop = next(self._numbers), asyncio.get_running_loop()
        about = {"job": number, "variant": variant}

        def tell(kind: str, **more: Any) -> None:
            loop.call_soon_threadsafe(self._tell, {"kind": kind, **about, **more})

        def done() -> None:
            try:
                work(lambda step, done, total: tell("progress", step=step, done=done, total=total))
            except DcirError as error:
                details = {
                    "kind": type(error).__name__,
                    "message": error.message,
                    "where": error.where,
                    "try": error.hint,
                }
                tell("failed", error=error.message, details=details)
            except Exception:
                # A page must not wait for ever, and learns nothing of our insides.
                _LOG.exception("job %d failed", number)
                tell("failed", error="dcir has failed here, its log says how", details={})
            else:
                tell("done")

        self._thread.submit(done)
        return number

    async def events(self) -> AsyncIterator[bytes]:
        """What happens from now on, as server-sent events; a comment where nothing does."""
        queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue(_MOST_WAITING)
        self._listeners.add(queue)
        self._loop = asyncio.get_running_loop()
        try:
            yield b": here\n\n"
            while True:
                try:
                    event = await asyncio.wait_for(queue.get(), _STILL_HERE_SECONDS)
                except TimeoutError:
                    yield b": still here\n\n"
                else:
                    if event is None:
                        return
                    yield f"data: {json.dumps(event)}\n\n".encode()
        finally:
            self._listeners.discard(queue)

    def close(self) -> None:
        """Begin nothing more, and end what listens."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._tell, None)

    def _tell(self, event: dict[str, Any] | None) -> None:
        for queue in self._listeners:
            if not queue.full():  # of one that does not listen any more
                queue.put_nowait(event)
