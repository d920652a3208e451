"""Where payloads go that are too large for Temporal: a local folder, S3 or GCS; every client and worker must name the same."""

import asyncio
import dataclasses
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Self
from urllib.parse import unquote, urlsplit

from temporalio.api.common.v1 import Payload
from temporalio.contrib.pydantic import PydanticPayloadConverter, pydantic_data_converter
from temporalio.converter import (
    DataConverter,
    ExternalStorage,
    StorageDriver,
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverStoreContext,
)

from gradeloop.errors import InvalidRequest

VARIABLE = "GRADELOOP_STORAGE"
THRESHOLD = 256 * 1024
"""Payloads from this size on are stored outside: below every limit of the server, above what an ordinary run produces."""


class SharedPayloadConverter(PydanticPayloadConverter):
    """The pydantic converter, made once a process: with external storage the SDK asks for a new one at every call."""

    _made: ClassVar[Self | None] = None

    def __new__(cls) -> Self:
        """Return the one that there is, which has learned the types."""
        cls._made = cls._made or super().__new__(cls)
        return cls._made

    def __init__(self) -> None:
        if not hasattr(self, "converters"):
            super().__init__()


class LocalFolder(StorageDriver):
    """Payloads as files named by their sha256, for servers and workers on one machine; nothing is ever deleted."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def name(self) -> str:
        """Return the driver's name in claims."""
        return "gradeloop.local_folder"

    async def store(self, context: StorageDriverStoreContext, payloads: Sequence[Payload]) -> list[StorageDriverClaim]:  # noqa: ARG002 - the driver's interface
        """Write each payload to its file, whole or not at all."""
        return [StorageDriverClaim(claim_data={"sha256": await asyncio.to_thread(self._write, payload)}) for payload in payloads]

    async def retrieve(self, context: StorageDriverRetrieveContext, claims: Sequence[StorageDriverClaim]) -> list[Payload]:  # noqa: ARG002 - the driver's interface
        """Read each payload back."""
        return [await asyncio.to_thread(self._read, claim.claim_data["sha256"]) for claim in claims]

    def _write(self, payload: Payload) -> str:
        raw = payload.SerializeToString(deterministic=True)
        name = hashlib.sha256(raw).hexdigest()
        file = self._file(name)
        if not file.exists():
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft = file.with_suffix(f".{os.getpid()}.{id(payload)}")
            draft.write_bytes(raw)
            draft.replace(file)
        return name

    def _read(self, name: str) -> Payload:
        if not name.isalnum():
            raise ValueError(f"{name!r} names no stored payload")
        raw = self._file(name).read_bytes()
        if hashlib.sha256(raw).hexdigest() != name:
            raise ValueError(f"the stored payload {name} is damaged")
        return Payload.FromString(raw)

    def _file(self, name: str) -> Path:
        return self._folder / name[:2] / name


async def converter(url: str | None) -> DataConverter:
    """Return the data converter of every client and worker, with external storage where `url` names one.

    Args:
        url: `file:///folder`, `s3://bucket` or `gs://bucket`; the buckets' credentials come from the environment.

    Raises:
        InvalidRequest: It is none of these, or its package is not installed.
    """
    if not url:
        return pydantic_data_converter
    driver = await _driver(url)
    return dataclasses.replace(
        pydantic_data_converter,
        payload_converter_class=SharedPayloadConverter,
        external_storage=ExternalStorage(drivers=[driver], payload_size_threshold=THRESHOLD),
    )


async def _driver(url: str) -> StorageDriver:
    parts = urlsplit(url)
    if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/"):
        return LocalFolder(Path(unquote(parts.path)))
    if parts.scheme in {"s3", "gs"} and parts.netloc and parts.path in {"", "/"}:
        try:
            return await (_s3(parts.netloc) if parts.scheme == "s3" else _gcs(parts.netloc))
        except ImportError as error:
            package = "aioboto3" if parts.scheme == "s3" else "gcloud-aio-storage"
            raise InvalidRequest(
                f"{VARIABLE}={url} needs a package that is not installed ({error.name}); run: pip install {package}"
            ) from None
    raise InvalidRequest(f"{VARIABLE}={url!r} names no storage; write file:///folder, s3://bucket or gs://bucket")


async def _s3(bucket: str) -> StorageDriver:
    import aioboto3  # type: ignore[import-not-found,unused-ignore]  # an optional package
    from temporalio.contrib.aws.s3driver import S3StorageDriver
    from temporalio.contrib.aws.s3driver.aioboto3 import new_aioboto3_client

    client = await aioboto3.Session().client("s3").__aenter__()
    return S3StorageDriver(new_aioboto3_client(client), bucket)


async def _gcs(bucket: str) -> StorageDriver:
    from gcloud.aio.storage import Storage  # type: ignore[import-not-found,unused-ignore]  # an optional package
    from temporalio.contrib.gcp.gcsdriver import GCSStorageDriver
    from temporalio.contrib.gcp.gcsdriver.gcloud_aio import new_gcloud_aio_client

    return GCSStorageDriver(new_gcloud_aio_client(Storage()), bucket)
