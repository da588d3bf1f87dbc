"""Make content of a URL (`s3://bucket/data`, `gs://`, `az://`, `file://`, `memory://`, ...) usable as a local path.

`local` downloads, `uploaded` uploads; a `Path` made from a URL loses only a slash. An artifact's manifest is removed
first and uploaded last, so that readers find all of it or none. fsspec is imported only when a URL is used.
Credentials come from the environment, as the store's library reads them; a URL must hold none.
"""

import asyncio
import contextlib
import errno
import glob
import hashlib
import logging
import os
import re
import shutil
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from .. import errors, log
from ..addresses import check_url, url_of
from ..option import default_cache
from .artifacts import MANIFEST, MAX_MANIFEST_BYTES, Manifest, files_in, make_folder, output_errors
from .cache import cached, locked, take_alone

_SECRET = re.compile(r"KEY|SECRET|TOKEN|PASSW|CREDENTIAL|CONNECTION|SAS", re.IGNORECASE)
"""Names of environment variables whose values must not be shown."""
_REFUSED = {"PermissionError", "NoCredentialsError", "PartialCredentialsError", "TokenRetrievalError", "HttpError"}
_KEPT = 1 << 36
"""Size limit, in bytes, of the copies that are kept."""
_CLOSING_S = 2.0
_NOT_UPLOADED = {"checkpoints", "logs"}

logger = logging.getLogger(__name__)


class Store(contextlib.AbstractContextManager["Store"]):
    """The files below a URL. Every failure is a StoreError that names the URL and no credential.

    Network I/O runs in a thread of its own. `close` ends it; a call that another thread is waiting for then fails.
    """

    def __init__(self, place: Path | str) -> None:
        check_url(str(place))
        self.url = url_of(place).rstrip("/")
        errors.require_extra("fsspec", "cloud", self.url)
        import fsspec

        protocol = self.url.partition(":")[0]
        options: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="store")
        try:
            kind = fsspec.get_filesystem_class(protocol)
        except ImportError as error:
            how = "pip install 'glovewire[cloud]'" if "s3fs" in str(error) else " ".join(str(error).split())
            raise errors.MissingExtra(f"{protocol}:// URLs need another library: {how}") from error
        except ValueError as error:
            known = "use s3://, gs://, az://, file:// or another store of fsspec"
            raise errors.UsageError(f"{protocol}:// URLs such as {self.url} are not supported: {known}") from error
        if kind.async_impl:
            self._loop = options["loop"] = self._try(asyncio.new_event_loop)
            self._loop.set_exception_handler(lambda _, context: logger.debug(log.line("store", **context)))
            self._thread.start()
        else:
            options["auto_mkdir"] = True  # makes folders on a disk
        try:
            self._files, self._root = self._try(fsspec.core.url_to_fs, self.url, **options)
        except errors.GlovewireError:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the thread; may be called twice, and while another thread waits for this store."""
        files, self._files = self._files, None
        loop, self._loop = self._loop, None
        if loop is not None:
            asyncio.run_coroutine_threadsafe(_disconnect(files), loop).result()
            loop.call_soon_threadsafe(_stop, loop)
            self._thread.join()
            loop.close()

    # ---- listing and reading

    def names(self) -> dict[str, tuple[int, float]]:
        """Return the size and time of every file below this URL, by name; "" stands for the URL itself."""
        return self._named(self._call("find", self._root, detail=True))

    def matching(self) -> dict[str, tuple[int, float]]:
        """Return the files that the URL, a pattern with `*`, `?` or `[`, matches, by their names in the store."""
        self._root, pattern = "", self._root
        return self._named(self._call("glob", pattern, detail=True))

    def _named(self, found: Any) -> dict[str, tuple[int, float]]:
        named = {}
        for path, facts in (found or {}).items():
            if facts.get("type") == "file":
                time = next((facts[key] for key in ("LastModified", "mtime", "updated", "created") if key in facts), 0)
                time = time.timestamp() if hasattr(time, "timestamp") else time
                seconds = float(time) if isinstance(time, int | float) else 0.0
                named[path.removeprefix(self._root).lstrip("/")] = (int(facts["size"] or 0), seconds)
        return named

    def read(self, name: str, start: int | None = None, end: int | None = None) -> bytes | None:
        """Return the content of a file, or its bytes [start, end); None if the file does not exist."""
        found = self._call("cat_file", self._place(name), start=start, end=end)
        return None if found is None else bytes(found)

    def manifest(self, folder: str = "") -> tuple[Manifest, bytes]:
        """Return the manifest of the artifact in `folder`, and its text; ArtifactError if there is none."""
        where = f"{self.url}/{folder}".rstrip("/")
        text = self.read(f"{folder}{MANIFEST}")
        if text is None:
            raise errors.ArtifactError(f"{where} has no {MANIFEST}: it was not made by glovewire, or not finished")
        return Manifest.parse(text[: MAX_MANIFEST_BYTES + 1], f"{where}/{MANIFEST}"), text

    def fetch(self, name: str, size: int, path: Path) -> None:
        """Write the file `name` to `path`; ArtifactError unless it has `size` bytes."""
        self._call("get_file", self._place(name), str(path))
        if not path.exists() or path.stat().st_size != size:
            raise errors.ArtifactError(f"{self.url}/{name} is missing, or does not have {size} bytes")

    # ---- writing

    def write(self, name: str, content: bytes) -> None:
        """Replace a small file."""
        self._call("pipe_file", self._place(name), content)

    def upload(self, path: Path, name: str = "") -> None:
        """Upload a file, or a folder with its manifest last, as `name`; ArtifactError if it changes meanwhile."""
        if not path.is_dir():
            self._put(path, name)
            return
        files = {file.relative_to(path).as_posix(): file for file in files_in(path)}
        names = [each for each in files if not each.startswith(".") and each.partition("/")[0] not in _NOT_UPLOADED]
        manifest = self._text(path / MANIFEST)
        self._call("rm_file", self._place(name, MANIFEST))
        for each in sorted(each for each in names if each != MANIFEST):
            self._put(files[each], name, each)
        if manifest != self._text(path / MANIFEST):  # then files may have changed during the upload, too
            raise errors.ArtifactError(f"{path} was replaced or removed meanwhile")
        if manifest is not None:
            self._call("pipe_file", self._place(name, MANIFEST), manifest)

    def _text(self, path: Path) -> bytes | None:
        """Return the content of a small file of this machine, None if it does not exist."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return bytes(self._try(path.read_bytes))
        return None

    def _put(self, path: Path, *names: str) -> None:
        if not path.exists() or self._call("put_file", str(path), self._place(*names), missing=False) is False:
            raise errors.ArtifactError(f"{path} was removed meanwhile")

    def remove(self, folder: str) -> None:
        """Remove a folder, its manifest first."""
        self._call("rm_file", self._place(folder, MANIFEST))
        self._call("rm", self._place(folder), recursive=True)

    # ---- calls

    def _place(self, *names: str) -> str:
        return "/".join(filter(None, (self._root, *names)))

    def _call(self, method: str, *arguments: Any, missing: Any = None, **more: Any) -> Any:
        """Call a method of the file system; return `missing` if the file does not exist."""
        files = self._files
        if files is None:
            raise errors.StoreError(f"{self.url} was closed")
        with contextlib.suppress(FileNotFoundError):
            return self._try(getattr(files, method), *arguments, **more)
        return missing

    def _try(self, function: Any, *arguments: Any, **more: Any) -> Any:
        """Call a function of fsspec; raises StoreError for every error except FileNotFoundError for a file."""
        try:
            result = function(*arguments, **more)
            failure = self._loop is None and self._thread.ident is not None and "closed"  # and the call cancelled
        except errors.GlovewireError:
            raise
        except Exception as error:  # each library has its own errors, whose texts may contain secrets
            if isinstance(error, FileNotFoundError) and "specified bucket" not in str(error):
                raise
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                raise errors.OutputError("no space left on the disk") from None
            failure = _reason(error)
        if failure:
            raise errors.StoreError(f"{self.url} cannot be used: {failure}")
        return result

    def _run(self) -> None:
        loop = self._loop
        assert loop is not None
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_default_executor())


async def _disconnect(files: Any) -> None:
    """Close the session of an asynchronous file system, which would otherwise be closed late or never."""
    try:
        session = getattr(files, "s3", None) or getattr(files, "session", None)
        if session is not None:
            await asyncio.wait_for(session.__aexit__(None, None, None), _CLOSING_S)
        for close, arguments in _left_for_the_exit(files):
            await asyncio.wait_for(close(*arguments), _CLOSING_S)
    except Exception as error:  # noqa: BLE001 # no session existed: `s3` had to connect, and could not
        logger.debug(log.line("store", why=type(error).__name__))


def _left_for_the_exit(files: Any) -> Iterator[tuple[Any, Any]]:
    """Deregister and yield what a file system such as adlfs would run on its loop at exit, when the loop has ended."""
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        found = finalizer.peek()
        if found is not None and found[0] is files and getattr(found[1], "__name__", "") == "sync":
            finalizer.detach()
            _, close, *arguments = found[2]
            yield close, arguments


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel everything on the loop, and stop it."""
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.call_soon(loop.stop)


def _reason(error: Exception) -> str:
    """Return why a store failed, in one line that holds no credential."""
    if type(error).__name__ in _REFUSED:
        return "access is refused: set credentials in the environment that may use it (docs/stores.md)"
    text = " ".join(str(error).split())
    for name, value in os.environ.items():
        if len(value) > 5 and _SECRET.search(name):
            text = text.replace(value, "***")
    text = re.sub(r"//[^/@ ]*@", "//***@", re.sub(r"\?\S*", "?...", text))
    return f"{type(error).__name__}: {text[:200]}"


# ---- as local paths


@contextlib.contextmanager
def local(place: Path, cache: Path | None = None, cache_bytes: int = _KEPT, *, verify: bool = True) -> Iterator[Path]:
    """Yield `place` itself or, for a URL, the local folder or file to which its content was downloaded.

    An artifact is kept in `cache`, as `cached` says; any other file is removed at the end.
    """
    if not url_of(place):
        yield place
        return
    with contextlib.ExitStack() as held:
        with Store(place) as store:
            found = store.names()
            if "" in found:
                folder = Path(held.enter_context(TemporaryDirectory(prefix="glovewire-")))
                copy = folder / store.url.rpartition("/")[2]
                store.fetch("", found[""][0], copy)
            else:
                kept = cached(store, cache or default_cache(), cache_bytes, _intact, verify=verify)
                copy = held.enter_context(kept)
        yield copy


def _intact(folder: Path, verify: bool) -> Path:
    """Return `folder` if its files match its manifest; ArtifactError otherwise."""
    manifest = Manifest.read(folder)
    Manifest.load(folder, manifest.kind, manifest.schema, verify=verify)
    return folder


def staged(place: Path) -> Path:
    """Return the local path at which content for the URL `place` is made before upload; `place` itself if no URL."""
    url = url_of(place).rstrip("/")
    if not url:
        return place
    return default_cache().parent / "staged" / hashlib.sha256(url.encode()).hexdigest()[:16] / url.rpartition("/")[2]


@contextlib.contextmanager
def uploaded(place: Path, what: str, *, resume: bool = False, keep: bool = False) -> Iterator[Path]:
    """Yield `place` or, for a URL, a local path at which to make `what`, which is uploaded at the end.

    The path is the same each time. It is removed after the upload, unless `keep` is set; after an error it stays for
    `resume`. Raises OutputError if the URL exists already, unless `resume` is set.
    """
    if not url_of(place):
        yield place
        return
    with Store(place) as store:
        if not resume and store.names():
            raise errors.OutputError(f"{what} {store.url} exists already: name another place or remove it")
    path = staged(place)
    with output_errors(path.parent, what):
        make_folder(path.parent)
    with locked(path.parent) as lock:
        if not take_alone(lock):
            raise errors.OutputError(f"{what} {store.url} is being made by another process")
        if not (resume or keep):
            shutil.rmtree(path, ignore_errors=True)
        yield path
        try:
            with Store(place) as store:
                store.upload(path)
        except errors.StoreError as error:
            raise errors.StoreError(
                f"{error}; {what} is complete in {path}; --resume uploads a dataset or run"
            ) from error
        logger.info(log.line("uploaded", kind=what, url=store.url))
        if not keep:
            shutil.rmtree(path.parent, ignore_errors=True)


def download(name: str, folder: Path) -> list[Path]:
    """Download the files below a URL, or those that match it as a pattern, into `folder`; return their paths.

    Files left by an interrupted download are kept. Raises StoreError if the URL has no files.
    """
    with Store(name) as store:
        found = store.matching() if glob.has_magic(name) else store.names()
        if not found:
            raise errors.StoreError(f"there is no file at {store.url}")
        paths = []
        for each, (size, modified) in sorted(found.items()):
            path = folder / (each or store.url.rpartition("/")[2])
            if folder.resolve() not in path.resolve().parents:
                raise errors.StoreError(f"{store.url} holds a file with a name that leaves its folder: {each[:80]!r}")
            with output_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                if not path.exists() or (path.stat().st_size, path.stat().st_mtime) != (size, modified):
                    unfinished = path.with_name(f".{path.name}.partial")
                    store.fetch(each, size, unfinished)
                    os.utime(unfinished, (modified, modified))
                    unfinished.rename(path)
            paths.append(path)
    logger.info(log.line("downloaded", url=store.url, files=len(paths)))
    return paths
