"""Files of a bucket are read on from their place, from a real S3 client to a server of this machine."""

import gzip
import json
import re
import time
from typing import Any

import pytest

from gradeloop.errors import InvalidRequest
from gradeloop.monitors import files
from gradeloop.monitors.contract import BucketSource
from gradeloop.monitors.files import SourceItem
from tests.monitors.test_sources import ids, last_cursor
from tests.rig.sources import place_since, read_source


def put(s3: Any, key: str, *names: str) -> None:
    s3.put_object(Bucket="runs", Key=key, Body=lines(*names))


def read(cursor: str | None = None, until: str | None = None, **more: Any) -> list[SourceItem]:
    source = BucketSource(bucket="runs", **more)
    return list(read_source(source if "quiet" in more else source.model_copy(update={"quiet": 0}), cursor, until=until))


@pytest.mark.slow
def test_a_bucket_is_read_on_behind_its_cursor(s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LISTED", 2)  # so that one tick lists it several times
    for number in range(5):
        put(s3, f"a/{number}.jsonl", f"a{number}", f"b{number}")
    put(s3, "other/z.jsonl", "z")

    first = read(prefix="a/")
    again = read(last_cursor(first), prefix="a/")
    half = last_cursor(first[:6])
    rest = read(half, prefix="a/")

    assert sorted(ids(first)) == [f"{letter}{number}" for letter in "ab" for number in range(5)]
    assert ids(again) == []
    assert sorted(ids(first[:6]) + ids(rest)) == sorted(ids(first))
    assert "z" in ids(read())


def test_what_came_lately_is_left_to_a_later_tick(s3: Any) -> None:
    put(s3, "a.jsonl", "a")

    assert read(quiet=3600) == []


def test_what_cannot_be_read_is_told_by_its_address_and_the_rest_goes_on(s3: Any) -> None:
    s3.put_object(Bucket="runs", Key="x/../bad.json", Body=b"{")
    s3.put_object(Bucket="runs", Key="x/archived.json", Body=b"{}", StorageClass="GLACIER")
    s3.put_object(Bucket="runs", Key="x/folder/", Body=b"")
    put(s3, "x/..", "hidden")
    put(s3, "x/good.jsonl", "good")

    found = read()
    said = sorted(item.unreadable for item in found if item.unreadable)

    assert sorted(ids(found)) == ["good", "hidden"]
    assert [text.split(":")[0] for text in said] == ["s3", "s3"]
    assert "s3://runs/x/../bad.json" in said[0]
    assert said[1] == "s3://runs/x/archived.json is archived; restore it, and put it there again"


def lines(*names: str) -> bytes:
    rows = ({"id": name, "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": name}]} for name in names)
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def test_objects_that_gzip_has_packed_are_read_and_those_that_cannot_be_unpacked_are_told(s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.put_object(Bucket="runs", Key="a.jsonl.gz", Body=gzip.compress(lines("a", "b")))
    s3.put_object(Bucket="runs", Key="c.jsonl", Body=gzip.compress(lines("c")), ContentEncoding="gzip")
    s3.put_object(Bucket="runs", Key="d.jsonl.gz", Body=lines("d"))
    s3.put_object(Bucket="runs", Key="e-cut.jsonl.gz", Body=gzip.compress(lines(*map(str, range(999))))[:-9])
    s3.put_object(Bucket="runs", Key="f-none.jsonl.gz", Body=b"\x1f\x8b none")
    s3.put_object(Bucket="runs", Key="g-bomb.jsonl.gz", Body=gzip.compress(b" " * 9_000_000))
    monkeypatch.setattr(files, "FILE_BYTES", 5_000_000)

    found = read()

    assert sorted(ids(found)) == ["a", "b", "c", "d"]
    said = [str(item.unreadable) for item in found if item.unreadable]
    assert [re.sub(r": .*;", ": ...;", text) for text in said] == [
        "s3://runs/e-cut.jsonl.gz is packed by gzip, and cannot be unpacked: ...; put it there again",
        "s3://runs/f-none.jsonl.gz is packed by gzip, and cannot be unpacked: ...; put it there again",
        "s3://runs/g-bomb.jsonl.gz has more than 0 GiB once it is unpacked; split it",
    ]


def test_more_objects_than_a_listing_has_are_all_read_and_one_that_is_replaced_is_read_again(
    s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "10")
    for number in range(25):
        put(s3, f"runs/{number:02}.jsonl", f"r{number}")
    first = read(prefix="runs/")
    time.sleep(1.1)  # S3 dates objects by the second
    put(s3, "runs/07.jsonl", "new")
    second = read(last_cursor(first), prefix="runs/")

    assert len(s3.list_objects_v2(Bucket="runs")["Contents"]) == 10
    assert len(ids(first)) == 25
    assert ids(second) == ["new"]


@pytest.mark.slow
def test_an_object_that_may_not_be_read_is_named_and_none_is_passed_over(s3: Any) -> None:
    put(s3, "a.jsonl", "a")
    put(s3, "b.jsonl", "b")
    rule = {"Effect": "Deny", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::runs/b.jsonl"}
    s3.put_bucket_policy(Bucket="runs", Policy=json.dumps({"Version": "2012-10-17", "Statement": [rule]}))
    found: list[SourceItem] = []

    with pytest.raises(InvalidRequest, match=r"the object s3://runs/b.jsonl cannot be read: access is denied; give the worker AWS cred"):
        found.extend(read_source(BucketSource(bucket="runs").model_copy(update={"quiet": 0}), None))
    s3.delete_bucket_policy(Bucket="runs")

    assert ids(read()) == ["a", "b"]


def test_an_answer_as_text_is_named_by_its_object(s3: Any) -> None:
    s3.put_object(Bucket="runs", Key="deep/answer 1.txt", Body=b"It is Paris.")

    assert ids(read()) == ["answer_1"]


def test_a_bucket_is_read_since_a_date_and_up_to_a_place(s3: Any) -> None:
    put(s3, "a.jsonl", "a")
    place = str(last_cursor(read()))
    put(s3, "b.jsonl", "b")
    source = BucketSource(bucket="runs")

    assert ids(read(place_since(source, "2020-01-01", place), place)) == ["a"]
    assert ids(read(place_since(source, "2999-01-01", place))) == []


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"bucket": "none"}, "the bucket 'none' cannot be read: it does not exist; name another one"),
        ({"ENDPOINT_URL_S3": "http://127.0.0.1:9"}, "Could not connect to the endpoint URL"),
        ({"ENDPOINT_URL_S3": "127.0.0.1:9000"}, "Invalid endpoint: .*set AWS_ENDPOINT_URL_S3 to an address with its scheme"),
        ({"PROFILE": "none"}, r"profile \(none\) could not be found; correct the worker's AWS settings"),
    ],
)
def test_a_bucket_that_cannot_be_read_says_what_to_do(
    s3: Any, monkeypatch: pytest.MonkeyPatch, changed: dict[str, str], message: str
) -> None:
    assert s3 is not None
    for name, value in changed.items():
        if name != "bucket":
            monkeypatch.setenv(f"AWS_{name}", value)

    with pytest.raises(InvalidRequest, match=message):
        list(read_source(BucketSource(bucket=changed.get("bucket", "runs")), None))


def test_no_credentials_are_told_with_their_cure(s3: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    assert s3 is not None
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.delenv(f"AWS_{name}")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))

    with pytest.raises(InvalidRequest, match="give the worker AWS credentials that may list the bucket"):
        list(read_source(BucketSource(bucket="runs"), None))
