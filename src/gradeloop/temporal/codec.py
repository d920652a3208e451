"""Payloads on their way through Temporal: encrypted by AES-256-GCM, with keys that rotate while workers run; large ones stored outside."""

import asyncio
import base64
import binascii
import dataclasses
import hashlib
import logging
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self
from urllib.parse import unquote, urlsplit

from google.protobuf.message import DecodeError
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.contrib.pydantic import PydanticPayloadConverter, pydantic_data_converter
from temporalio.converter import (
    ActivitySerializationContext,
    DataConverter,
    DefaultFailureConverter,
    DefaultFailureConverterWithEncodedAttributes,
    ExternalStorage,
    PayloadCodec,
    PayloadConverter,
    SerializationContext,
    StorageDriver,
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverStoreContext,
    WithSerializationContext,
    WorkflowSerializationContext,
)

from gradeloop.errors import InvalidRequest, PayloadUnreadable, installed
from gradeloop.settings.secrets import remember_secret
from gradeloop.text import clip

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

logger = logging.getLogger("gradeloop.encryption")

VARIABLE = "GRADELOOP_ENCRYPTION_KEYS"

POLICY = "GRADELOOP_ENCRYPTION"
REQUIRED = "required"
"""The policy under which a payload that is plain, or names no workflow, is not read."""

HOOK = "python:"
"""The beginning of a value that names a function, which brings keys from a key management service."""

ENCODING = b"binary/encrypted"
CIPHER = b"AES-256-GCM"
PLAIN = "plain"
"""An id in place of a key: where it comes first, nothing is encrypted yet, and the keys below it are there to read."""

KEY_BYTES = 32
NONCE_BYTES = 12

QUERY_TASK = "query: "
"""The beginning of the name of a task in which the SDK answers a query."""

FILE_BYTES = 1024 * 1024
"""The largest file of keys: thousands of them."""

AGAIN_SECONDS = 10.0
"""Seconds between two looks for a key that is not there: a history may hold thousands of its payloads."""

_TICK = re.compile(r"-\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
"""The suffix that Temporal appends to the workflow id of a schedule, for which the payload was encrypted."""

_KEY_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:-]{0,127}")


class KeyRing:
    """The keys by id. The first one encrypts; all of them decrypt, so that what older ones encrypted stays readable.

    Keys in a file are read anew when it changes, so that they rotate without a restart.
    """

    def __init__(self, load: Callable[[], Mapping[str, bytes]], origin: str, file: Path | None = None) -> None:
        self._load, self._origin, self._file = load, origin, file
        self._ciphers: dict[str, AESGCM] = {}
        self._newest: str | None = None
        self._looked = 0.0
        self._state = self._seen()
        self._read()

    @property
    def newest(self) -> str | None:
        """The id of the key that encrypts, as a file says now; None while nothing is encrypted yet."""
        if (state := self._seen()) is not None and state != self._state:
            self._state = state
            self.refresh()
        return self._newest

    def _seen(self) -> tuple[int, int, int] | None:
        try:
            facts = self._file.stat() if self._file else None
        except OSError:
            return None
        return (facts.st_ino, facts.st_mtime_ns, facts.st_size) if facts else None

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the keys, in their order."""
        return tuple(self._ciphers)

    def refresh(self) -> None:
        """Load the keys anew; while that fails, the last ones count."""
        self._looked = time.monotonic()
        try:
            self._read()
        except InvalidRequest as error:
            logger.warning("the keys stay as they were: %s", error)

    def cipher(self, key_id: str) -> "AESGCM":
        """Return the cipher of a key, looked for anew every ten seconds at most; raise PayloadUnreadable where it is not there."""
        if key_id not in self._ciphers and time.monotonic() - self._looked > AGAIN_SECONDS:
            self.refresh()
        if key_id not in self._ciphers:
            raise PayloadUnreadable(
                f"a payload is encrypted with the key {clip(key_id)}, which {self._origin} does not have ({', '.join(self._ciphers)}); "
                "add that key below the first"
            )
        return self._ciphers[key_id]

    def _read(self) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        found = self._load()
        keys = {key_id: key for key_id, key in found.items() if key_id != PLAIN}
        if not keys:
            raise InvalidRequest(f"{self._origin} has no key; write a line 'ID KEY', the key from: openssl rand -base64 32")
        for key_id, key in keys.items():
            if not _KEY_ID.fullmatch(key_id):
                raise InvalidRequest(f"{self._origin}: {clip(key_id)} is not an id of a key; use letters, digits and . _ / : -")
            if len(key) != KEY_BYTES:
                raise InvalidRequest(f"{self._origin}: the key {key_id} has not {KEY_BYTES} bytes; make one with: openssl rand -base64 32")
        self._ciphers = {key_id: AESGCM(key) for key_id, key in keys.items()}
        self._newest = None if next(iter(found)) == PLAIN else next(iter(found))


def read_keys(path: Path) -> dict[str, bytes]:
    """Read a file of keys: an id and 32 bytes as base64 a line; empty lines and those that begin with # say nothing.

    Raises:
        InvalidRequest: The file cannot be read, or a line is none of these; no message shows a key.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES + 1)
        if len(raw) > FILE_BYTES:
            raise InvalidRequest(f"{path} has more than {FILE_BYTES} bytes; give a file of keys")
        text = raw.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidRequest(f"{VARIABLE} names the file {str(path)!r}, which cannot be read ({reason}); correct the path") from None
    keys: dict[str, bytes] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        key_id, *rest = line.split()
        if line.strip() == PLAIN:
            keys[PLAIN] = b""
            continue
        if len(rest) != 1 or key_id in keys:
            why = f"names the key {clip(key_id)} again" if len(rest) == 1 else "is not 'ID KEY'"
            raise InvalidRequest(f"{path}:{number} {why}; write one line a key, the key from: openssl rand -base64 32")
        try:
            keys[key_id] = base64.b64decode(rest[0], validate=True)
        except binascii.Error:
            raise InvalidRequest(f"{path}:{number}: the key {clip(key_id)} is not base64; make one with: openssl rand -base64 32") from None
        remember_secret(rest[0])
    return keys


def load_ring(environ: Mapping[str, str] = os.environ) -> KeyRing | None:
    """Load the keys that `GRADELOOP_ENCRYPTION_KEYS` names, or None; raise InvalidRequest where they, or their package, are missing."""
    named = environ.get(VARIABLE, "").strip()
    if not named:
        if is_required(environ):
            raise InvalidRequest(f"{POLICY} is {REQUIRED} and {VARIABLE} names no keys; name the file of keys, or unset {POLICY}")
        return None
    with installed(f"{VARIABLE} is set and encryption is not installed; run: pip install 'gradeloop[encryption]'", "cryptography"):
        if named.startswith(HOOK):
            return KeyRing(_hook(named), f"{VARIABLE}={named}")
        file = Path(named).expanduser()
        return KeyRing(lambda: read_keys(file), str(file), file)


def is_required(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether plain payloads are refused; raise InvalidRequest where `GRADELOOP_ENCRYPTION` has another value."""
    policy = environ.get(POLICY, "").strip()
    if policy not in {"", REQUIRED}:
        raise InvalidRequest(f"{POLICY} is {clip(policy)}; write {REQUIRED}, or unset it to read what is plain, too")
    return policy == REQUIRED


def _hook(named: str) -> Callable[[], Mapping[str, bytes]]:
    """Return the function that `python:module:function` names; what it raises is told in one sentence."""
    module, _, function = named.removeprefix(HOOK).partition(":")
    if not module or not function.isidentifier():
        raise InvalidRequest(f"{VARIABLE}={clip(named)} names no function; write python:package.module:function, or a file's path")

    def load() -> Mapping[str, bytes]:
        try:
            keys = getattr(import_module(module), function)()
        except Exception as error:
            raise InvalidRequest(f"{VARIABLE}={named} gave no keys ({type(error).__name__}: {error}); correct that function") from error
        if not isinstance(keys, Mapping) or not all(isinstance(key_id, str) and isinstance(key, bytes) for key_id, key in keys.items()):
            raise InvalidRequest(f"{VARIABLE}={named} returned no mapping of ids to keys of {KEY_BYTES} bytes; correct that function")
        return keys

    return load


# A server that may not read payloads could still show one workflow's to another: a judge would grade a foreign draft. So the associated
# data names the workflow. The name stands beside the payload, too, for readers that have no workflow at hand, such as the codec server.
class EncryptionCodec(PayloadCodec, WithSerializationContext):
    """Encrypts every payload as a whole, metadata included, for its workflow; reads what was never encrypted unless that is refused."""

    def __init__(self, ring: KeyRing, *, required: bool = False, workflow_id: str = "") -> None:
        self._ring = ring
        self._required = required
        self._workflow = workflow_id

    def with_context(self, context: SerializationContext) -> Self:
        """Return the codec of a workflow's payloads, and of its activities'."""
        workflow_id = context.workflow_id if isinstance(context, WorkflowSerializationContext | ActivitySerializationContext) else None
        return type(self)(self._ring, required=self._required, workflow_id=workflow_id or "")

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Encrypt payloads with the newest key; raise PayloadUnreadable where there is none yet and plain payloads are refused."""
        key_id = self._ring.newest
        if key_id is None and self._required:
            raise PayloadUnreadable(f"{POLICY} is {REQUIRED} and the keys begin with {PLAIN!r}; take that line out, or unset {POLICY}")
        return list(payloads) if key_id is None else [self._encrypted(payload, key_id) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Decrypt payloads.

        Raises:
            PayloadUnreadable: A payload's key is not there, it was changed since it was encrypted, it is another workflow's, or it is
                plain where that is refused.
        """
        return [self._decrypted(payload) for payload in payloads]

    def _encrypted(self, payload: Payload, key_id: str) -> Payload:
        nonce = os.urandom(NONCE_BYTES)
        metadata = {"encoding": ENCODING, "encryption-cipher": CIPHER, "encryption-key-id": key_id.encode()}
        metadata |= {"encryption-workflow": self._workflow.encode()} if self._workflow else {}
        named = f"{key_id}\0{self._workflow}".encode()
        sealed = self._ring.cipher(key_id).encrypt(nonce, payload.SerializeToString(), named)
        return Payload(metadata=metadata, data=nonce + sealed)

    def _decrypted(self, payload: Payload) -> Payload:
        from cryptography.exceptions import InvalidTag

        if payload.metadata.get("encoding") != ENCODING:
            if self._required:
                raise PayloadUnreadable(f"a payload is plain and {POLICY} is {REQUIRED}; encrypt it where it is written, or unset {POLICY}")
            return payload
        cipher_name, key_id, named = (
            payload.metadata.get(f"encryption-{name}", b"").decode(errors="replace") for name in ("cipher", "key-id", "workflow")
        )
        if cipher_name != CIPHER.decode():
            raise PayloadUnreadable(f"a payload is encrypted with {clip(cipher_name)}; gradeloop reads {CIPHER.decode()} alone")
        # The name beside a payload is authenticated, and the workflow in which it stands is known from the
        # context. A schedule's workflows have the name of the schedule with a time behind it, and their first
        # payload was encrypted under the plain name: this suffix, and nothing else, may follow.
        rest = self._workflow.removeprefix(named) if named or self._required else ""
        if self._workflow and rest and not (named and _TICK.fullmatch(rest)):
            owner = f"of the workflow {clip(named)}" if named else "of no workflow"
            why = f"a payload {owner} stands in {clip(self._workflow)}"
            raise PayloadUnreadable(f"{why}; it was moved there: look for who writes to the server")
        cipher = self._ring.cipher(key_id)
        try:
            return Payload.FromString(cipher.decrypt(payload.data[:NONCE_BYTES], payload.data[NONCE_BYTES:], f"{key_id}\0{named}".encode()))
        except (InvalidTag, ValueError, DecodeError):
            raise PayloadUnreadable(
                f"a payload does not open with the key {clip(key_id)}: another key has that id here, or the payload was changed"
            ) from None


class EncryptedFailures(DefaultFailureConverterWithEncodedAttributes):
    """Encrypts what failures say, but for the refusal of a query: the server keeps none, and its client can decode none."""

    def __init__(self) -> None:
        super().__init__()
        self._plain = DefaultFailureConverter()

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        """Write an exception into a failure."""
        answers = workflow.in_workflow() and (task := asyncio.current_task()) and task.get_name().startswith(QUERY_TASK)
        (self._plain.to_failure if answers else super().to_failure)(exception, payload_converter, failure)


STORAGE_VARIABLE = "GRADELOOP_STORAGE"
THRESHOLD = 256 * 1024
"""The size from which payloads are stored outside: below every limit of the server, above the payloads of an ordinary run."""


class SharedPayloadConverter(PydanticPayloadConverter):
    """The pydantic converter, created once a process: with external storage the SDK asks for a new one at every call."""

    _instance: ClassVar[Self | None] = None

    def __new__(cls) -> Self:
        """Return the one instance, whose caches of types are warm."""
        cls._instance = cls._instance or super().__new__(cls)
        return cls._instance

    def __init__(self) -> None:
        if not hasattr(self, "converters"):
            super().__init__()


def payload_owner(namespace: str, workflow_id: str) -> str:
    """Return the name of the folder of a workflow's large payloads."""
    return hashlib.sha256(f"{namespace}\0{workflow_id}".encode()).hexdigest()


def payload_file(name: str, owner: str = "") -> Path:
    """Return the file of a large payload within the folder of all: in its workflow's own, or beside these where no workflow owns it."""
    return Path((owner or name)[:2], owner, name)


class LocalFolder(StorageDriver):
    """Payloads as files named by their sha256, in a folder for each workflow, for servers and workers on one machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def name(self) -> str:
        """Return the driver's name in claims."""
        return "gradeloop.local_folder"

    async def store(self, context: StorageDriverStoreContext, payloads: Sequence[Payload]) -> list[StorageDriverClaim]:
        """Write each payload to its file, whole or not at all."""
        target = context.target
        owner = payload_owner(target.namespace, target.id) if target is not None and target.id else ""
        named = {"owner": owner} if owner else {}
        return [StorageDriverClaim(claim_data={"sha256": await asyncio.to_thread(self._write, one, owner), **named}) for one in payloads]

    async def retrieve(self, context: StorageDriverRetrieveContext, claims: Sequence[StorageDriverClaim]) -> list[Payload]:  # noqa: ARG002 - the driver's interface
        """Read each payload back."""
        return [await asyncio.to_thread(self._read, claim.claim_data["sha256"], claim.claim_data.get("owner", "")) for claim in claims]

    def _write(self, payload: Payload, owner: str) -> str:
        raw = payload.SerializeToString(deterministic=True)
        name = hashlib.sha256(raw).hexdigest()
        file = self._folder / payload_file(name, owner)
        try:
            # Equal payloads have one file, so writing one again only says that it is in use. A draft beside it is
            # renamed when it is whole: a reader, or another writer of the same content, never sees half of a
            # file.
            os.utime(file)  # it is in use again: whoever removes what no history names leaves it
        except FileNotFoundError:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft = file.with_suffix(f".{os.getpid()}.{id(payload)}")
            draft.write_bytes(raw)
            draft.replace(file)
        return name

    def _read(self, name: str, owner: str) -> Payload:
        if not name.isalnum() or not f"0{owner}".isalnum():
            raise ValueError(f"{owner + name!r} names no stored payload")
        raw = (self._folder / payload_file(name, owner)).read_bytes()
        if hashlib.sha256(raw).hexdigest() != name:
            raise ValueError(f"the stored payload {name} is damaged")
        return Payload.FromString(raw)


async def build_converter(url: str | None, ring: KeyRing | None = None) -> DataConverter:
    """Build the data converter of clients and workers, with external storage if `url` names one.

    Args:
        url: `file:///folder`, `s3://bucket` or `gs://bucket`; the buckets' credentials come from the environment.
        ring: The keys with which payloads are encrypted, before they are stored anywhere, and the texts of failures with them.

    Raises:
        InvalidRequest: The URL is none of these, or its package is not installed.
    """
    converter = pydantic_data_converter
    if ring is not None:
        converter = dataclasses.replace(
            converter,
            payload_codec=EncryptionCodec(ring, required=is_required()),
            failure_converter_class=EncryptedFailures,
        )
    if not url:
        return converter
    driver = await _build_driver(url)
    return dataclasses.replace(
        converter,
        payload_converter_class=SharedPayloadConverter,
        external_storage=ExternalStorage(drivers=[driver], payload_size_threshold=THRESHOLD),
    )


async def _build_driver(url: str) -> StorageDriver:
    parts = urlsplit(url)
    if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/"):
        return LocalFolder(Path(unquote(parts.path)))
    if parts.scheme in {"s3", "gs"} and parts.netloc and parts.path in {"", "/"}:
        try:
            return await (_build_s3_driver(parts.netloc) if parts.scheme == "s3" else _build_gcs_driver(parts.netloc))
        except ImportError as error:
            package = "aioboto3" if parts.scheme == "s3" else "gcloud-aio-storage"
            raise InvalidRequest(
                f"{STORAGE_VARIABLE}={url} needs a package that is not installed ({error.name}); run: pip install {package}"
            ) from None
    raise InvalidRequest(f"{STORAGE_VARIABLE}={url!r} names no storage; write file:///folder, s3://bucket or gs://bucket")


async def _build_s3_driver(bucket: str) -> StorageDriver:
    import aioboto3  # type: ignore[import-not-found,unused-ignore]  # an optional package
    from temporalio.contrib.aws.s3driver import S3StorageDriver
    from temporalio.contrib.aws.s3driver.aioboto3 import new_aioboto3_client

    client = await aioboto3.Session().client("s3").__aenter__()
    return S3StorageDriver(new_aioboto3_client(client), bucket)


async def _build_gcs_driver(bucket: str) -> StorageDriver:
    from gcloud.aio.storage import Storage  # type: ignore[import-not-found,unused-ignore]  # an optional package
    from temporalio.contrib.gcp.gcsdriver import GCSStorageDriver
    from temporalio.contrib.gcp.gcsdriver.gcloud_aio import new_gcloud_aio_client

    return GCSStorageDriver(new_gcloud_aio_client(Storage()), bucket)
