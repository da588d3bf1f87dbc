"""A store that speaks S3 (moto, in a separate process), behind a relay that injects failures."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import os
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Self

from processes import free_port, until

SECRET = "a-secret-that-nobody-may-see"
DELAY_S = 0.1


class Answer(enum.Enum):
    """How the store answers; the value is the relay's own answer, if it does not pass the request on."""

    WELL = b""
    SLOWLY = b" "
    UNAVAILABLE = b"503 Service Unavailable"
    REFUSED = b"403 Forbidden"
    NOT_AT_ALL = b"-"


class ObjectStore:
    """Runs the process, and the relay at `url`, until the `with` block ends; `answer` may be changed at any time."""

    def __init__(self, folder: Path) -> None:
        self.answer = Answer.WELL
        self._log, self._port = folder / "moto.log", free_port()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relay of the store")
        self.url = ""

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables for programs that use the store."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "somebody",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_MAX_ATTEMPTS": "1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def __enter__(self) -> Self:
        self.start()
        self._thread.start()
        self._relay = self._run(asyncio.start_server(self._pass_on, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._relay.sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self.kill()

    def start(self) -> None:
        """Start or restart the process, with an empty bucket."""
        words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self._port)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log, env={**os.environ, "PYTHONWARNINGS": ""})
        until(self._has_bucket, "the store answers")

    def kill(self) -> None:
        """Kill the process, which loses all of its objects."""
        self._process.kill()
        self._process.wait()

    def _has_bucket(self) -> bool:
        request = urllib.request.Request(f"http://127.0.0.1:{self._port}/bucket", method="PUT")
        with contextlib.suppress(OSError), urllib.request.urlopen(request) as reply:
            return bool(reply.status == 200)
        return False

    def _run(self, work):  # type: ignore[no-untyped-def]
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _close(self) -> None:
        self._relay.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:  # type: ignore[arg-type]
            task.cancel()
        await asyncio.sleep(0.05)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            back, there = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.close()
            return
        answers = asyncio.create_task(self._answers(back, writer))
        with contextlib.suppress(OSError, asyncio.CancelledError):
            while data := await reader.read(1 << 16):
                if self.answer is Answer.SLOWLY:
                    await asyncio.sleep(DELAY_S)
                elif self.answer is not Answer.WELL:
                    if self.answer is not Answer.NOT_AT_ALL:
                        writer.write(
                            b"HTTP/1.1 %b\r\ncontent-length: 0\r\nconnection: close\r\n\r\n" % self.answer.value
                        )
                    break
                there.write(data)
                await there.drain()
        answers.cancel()
        for each in (there, writer):
            each.close()

    @staticmethod
    async def _answers(back: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            while data := await back.read(1 << 16):
                writer.write(data)
                await writer.drain()
            writer.close()
