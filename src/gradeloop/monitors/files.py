"""Files as a monitor's source, in a folder or in an S3 bucket, in the order in which they came."""

import gzip
import heapq
import json
import os
import re
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from gradeloop.contract.transcript import AgentRun
from gradeloop.errors import InvalidRequest, installed
from gradeloop.monitors.contract import BucketSource, FolderSource
from gradeloop.settings.secrets import scrubbed
from gradeloop.text import encodable, headline
from gradeloop.transcripts.json_access import ODD_SHAPES
from gradeloop.transcripts.readers import FILE_BYTES, Reading, read_run_file


class SourceItem(NamedTuple):
    """One thing that a source has: a run, what cannot be read, or only a new place."""

    cursor: str | None
    """The place behind it, from which a later tick reads on; None for no other than before."""
    run: AgentRun | None = None
    unreadable: str | None = None


def reasons(before: tuple[str, ...], items: Iterable[SourceItem]) -> tuple[str, ...]:
    """Return the first five reasons for which items cannot be read, each as a line that a store holds."""
    return (*before, *(headline(encodable(item.unreadable), 400) for item in items if item.unreadable is not None))[:5]


def read_items(path: Path, name: str) -> Iterator[SourceItem]:
    """Yield the runs of a file, and why others of it cannot be read, whatever it has."""
    reading = Reading(skip_bad=True)
    try:
        for run in read_run_file(path, reading):
            yield SourceItem(None, run)
    except ODD_SHAPES as error:
        reading.left_out.append(str(error) if isinstance(error, InvalidRequest) else f"{path} cannot be read: {error}")
    for text in reading.left_out:
        yield SourceItem(None, unreadable=text.replace(str(path), name))


LISTED = 10_000
"""Objects that are held in memory at once; a bucket is listed again for the ones behind them."""

CREDENTIALS = "give the worker AWS credentials that may list the bucket and get its objects, such as AWS_PROFILE or a role"

_REFUSALS = {
    "NoSuchBucket": "it does not exist; name another one, or its AWS_REGION",
    "PermanentRedirect": "it is in another region; set AWS_REGION",
    "InvalidAccessKeyId": f"the key is not known; {CREDENTIALS}",
    "SignatureDoesNotMatch": f"the key's secret is wrong; {CREDENTIALS}",
    "AccessDenied": f"access is denied; {CREDENTIALS}",
}

_GZIP = b"\x1f\x8b"
"""First bytes of a file packed by gzip."""

_PART = 1024 * 1024
"""Bytes of an object that are in memory at once."""


class ObjectPlace(NamedTuple):
    """Place of an object in the order of arrival."""

    modified: datetime
    key: str

    @classmethod
    def read(cls, cursor: str) -> "ObjectPlace":
        """Return the place that a cursor means."""
        modified, key = json.loads(cursor)
        return cls(datetime.fromisoformat(modified), str(key))

    @property
    def cursor(self) -> str:
        """The place as the store has it."""
        return json.dumps([self.modified.isoformat(), self.key])


class _Object(NamedTuple):
    place: ObjectPlace
    size: int


def read_bucket(source: BucketSource, cursor: str | None, until: str | None) -> Iterator[SourceItem]:
    """Yield the runs of the objects that came after the cursor, in that order.

    Raises:
        InvalidRequest: The bucket cannot be read; the message says what to do.
    """
    after, last = (None if place is None else ObjectPlace.read(place) for place in (cursor, until))
    denied = list[str]()
    with _refusals(source), TemporaryDirectory(prefix="gradeloop-bucket-") as folder:
        client = _client(source)
        while found := heapq.nsmallest(LISTED, _objects(client, source, after, last)):
            for one in found:
                items = _runs_of(client, source, one, Path(folder))
                if isinstance(items, str):  # the key may be wrong for all objects: none is passed over before another one can be read
                    denied.append(items)
                    continue
                yield from (SourceItem(None, unreadable=why) for why in denied)
                denied.clear()
                yield from items
                yield SourceItem(one.place.cursor)
                for copy in Path(folder).iterdir():
                    copy.unlink()
            after = found[-1].place
        if denied:
            raise InvalidRequest(denied[0])


@contextmanager
def _refusals(source: BucketSource) -> Iterator[None]:
    """Raise what the library says of a bucket as a refusal with its cure."""
    with installed("a bucket needs a package; on the worker, run: pip install 'gradeloop[s3]'"):
        from botocore.exceptions import (  # type: ignore[import-untyped,import-not-found,unused-ignore]  # it has no types
            BotoCoreError,
            ClientError,
            NoCredentialsError,
            NoRegionError,
        )
    try:
        yield
    except ClientError as error:
        why = _why(error)
    except NoCredentialsError:
        why = CREDENTIALS
    except NoRegionError:
        why = "its region is not known; set AWS_REGION"
    except BotoCoreError as error:
        why = f"{' '.join(str(error).split())}; correct the worker's AWS settings, or try again"
    else:
        return
    raise InvalidRequest(scrubbed(f"the bucket {source.bucket!r} cannot be read: {why}"))


def _client(source: BucketSource) -> Any:  # noqa: ANN401 - the library has no types
    import boto3  # type: ignore[import-untyped,import-not-found,unused-ignore]  # it has no types
    from botocore.config import Config  # type: ignore[import-untyped,import-not-found,unused-ignore]

    retries = {"mode": "standard", "total_max_attempts": 4}
    try:
        return boto3.session.Session().client("s3", config=Config(connect_timeout=10, read_timeout=60, retries=retries))
    except ValueError as error:  # of an address without a scheme
        cure = "set AWS_ENDPOINT_URL_S3 to an address with its scheme, such as http://127.0.0.1:9000"
        raise InvalidRequest(scrubbed(f"the bucket {source.bucket!r} cannot be read: {error}; {cure}")) from None


def _why(error: Any) -> str:  # noqa: ANN401 - the library has no types
    """Return why S3 refuses a request, with the cure; some servers say no more than the status."""
    code = _code(error)
    by_status = {"401": "AccessDenied", "403": "AccessDenied", "404": "NoSuchBucket"}
    return _REFUSALS.get(by_status.get(code, code), f"{' '.join(str(error).split())}; correct the settings, or try again")


def _code(error: Any) -> str:  # noqa: ANN401 - the library has no types
    return str(error.response.get("Error", {}).get("Code", ""))


def _objects(client: Any, source: BucketSource, after: ObjectPlace | None, last: ObjectPlace | None) -> Iterator[_Object]:  # noqa: ANN401
    """Yield the objects between two places; S3 lists them by their names, not by the time at which they came."""
    latest: datetime | None = None
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=source.bucket, Prefix=source.prefix):
        if latest is None:  # by the clock that gives objects their times
            date = page["ResponseMetadata"]["HTTPHeaders"]["date"]
            latest = parsedate_to_datetime(date) - timedelta(seconds=source.quiet)
        for entry in page.get("Contents", ()):
            place = ObjectPlace(entry["LastModified"], entry["Key"])
            is_between = (after is None or place > after) and (last is None or place <= last)
            if is_between and place.modified <= latest and not place.key.endswith("/"):
                yield _Object(place, entry["Size"])


def _runs_of(client: Any, source: BucketSource, found: _Object, folder: Path) -> Iterator[SourceItem] | str:  # noqa: ANN401
    """Return the runs of an object, read from a copy of its own that then goes, or why access to it is denied."""
    from botocore.exceptions import ClientError

    name = f"s3://{source.bucket}/{found.place.key}"
    if found.size > FILE_BYTES:
        return iter([SourceItem(None, unreadable=f"{name} has more than {FILE_BYTES // 1024**3} GiB; split it")])
    path = folder / (re.sub(r"[^\w.-]", "_", PurePosixPath(found.place.key).name.removesuffix(".gz"))[-60:].lstrip(".") or "object")
    try:
        with path.open("wb") as copy:
            for part in client.get_object(Bucket=source.bucket, Key=found.place.key)["Body"].iter_chunks(_PART):
                copy.write(part)
    except ClientError as error:
        if _code(error) == "NoSuchKey":  # it was removed meanwhile
            return iter(())
        if _code(error) != "InvalidObjectState":  # that of an archived object
            why = scrubbed(f"the object {name} cannot be read: {_why(error)}, or remove the object")
            if _code(error) in {"403", "AccessDenied"} or _code(error).startswith("KMS."):
                return why
            raise InvalidRequest(why) from None
        return iter([SourceItem(None, unreadable=f"{name} is archived; restore it, and put it there again")])
    if (problem := _unpack(path)) is not None:
        return iter([SourceItem(None, unreadable=f"{name} {problem}")])
    return read_items(path, name)


def _unpack(path: Path) -> str | None:
    """Unpack a file in its place where gzip has packed it, as what writes logs into buckets does; return why that fails, None otherwise."""
    with path.open("rb") as packed:
        if packed.read(2) != _GZIP:
            return None
    unpacked, size = path.with_name(f"{path.name}.unpacked"), 0
    try:
        with gzip.open(path) as packed_file, unpacked.open("wb") as copy:
            while part := packed_file.read(_PART):
                size += copy.write(part)
                if size > FILE_BYTES:
                    return f"has more than {FILE_BYTES // 1024**3} GiB once it is unpacked; split it"
        unpacked.replace(path)
    except (OSError, EOFError, zlib.error) as error:
        return f"is packed by gzip, and cannot be unpacked: {error}; put it there again"
    finally:
        unpacked.unlink(missing_ok=True)
    return None


def read_folder(source: FolderSource, cursor: str | None, until: str | None) -> Iterator[SourceItem]:
    """Yield the runs of the files that were put there or changed after the cursor, in that order.

    The time is that of the file's entry (ctime), which moving and copying set, too, and nobody can set back.
    """
    after, closed = _file_place(cursor), list[OSError]()
    for place, path in _quiet_files(source, closed):
        if place <= after or (until is not None and place > _file_place(until)):
            continue
        yield from read_items(path, str(path))
        yield SourceItem(json.dumps(place))
    for error in closed:
        why = f"the folder {error.filename!r} cannot be read: {error.strerror}; let the worker's user read it, and run a backfill"
        if error.filename == source.path:
            raise InvalidRequest(why)
        yield SourceItem(None, unreadable=why)


def _file_place(cursor: str | None) -> tuple[int, str]:
    if cursor is None:
        return 0, ""
    changed, path = json.loads(cursor)
    return int(changed), str(path)


def _quiet_files(source: FolderSource, closed: list[OSError]) -> list[tuple[tuple[int, str], Path]]:
    """Return the files that have been quiet, by the time at which they came; links lead nowhere. Folders that cannot be read are noted."""
    root = Path(source.path)
    if not root.is_dir():
        raise InvalidRequest(f"the folder {source.path!r} does not exist on the worker's machine; make it, or name another one")
    latest = time.time_ns() - int(source.quiet * 1e9)
    found = []
    for folder, folders, names in os.walk(root, onerror=closed.append):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = Path(folder, name)
            if name.startswith(".") or path.is_symlink():
                continue
            try:
                status = path.stat()
            except FileNotFoundError:  # it was taken away meanwhile
                continue
            if status.st_ctime_ns <= latest:
                found.append(((status.st_ctime_ns, str(path.relative_to(root))), path))
    return sorted(found)
