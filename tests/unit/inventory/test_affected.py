"""Advisories and package URLs against bills of materials."""

from __future__ import annotations

import json

import pytest

from toolchain import inventory
from toolchain.errors import InputError, VerificationError
from toolchain.inventory import Component, affected
from toolchain.inventory.affected import examine, parse_advisory

DIGEST = "ab" * 32


def bill(*components: Component) -> bytes:
    return inventory.bill(Component("application", "net", sha256=DIGEST), components)


def package(name, version, kind="pypi", *, required=True):
    return Component("library", name, version, f"pkg:{kind}/{name}@{version}", required=required)


BILL = bill(package("onnx", "1.16.0"), package("onnx-ir", "0.1"), Component("application", "compiler", "gcc 12.2"))


@pytest.fixture
def advisory(tmp_path):
    """Write an advisory, and parse it."""

    def write(document):
        path = tmp_path / "advisory.json"
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        return parse_advisory(str(path))

    return write


def osv(**affected):
    return {"id": "OSV-1", "affected": [{"package": {"ecosystem": "PyPI", "name": "ONNX"}, **affected}]}


def cve(*versions, **affected):
    entry = {"vendor": "onnx", "product": "onnx", "versions": list(versions), **affected}
    return {"cveMetadata": {"cveId": "CVE-2026-1"}, "containers": {"cna": {"affected": [entry]}}}


def certainty(advisory, data=BILL):
    product = examine(advisory, data, "bill")
    return product and product.certainty


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("pkg:pypi/onnx", "affected"),
        ("pkg:pypi/onnx@1.16.0", "affected"),
        ("pkg:pypi/onnx@1.16.1", None),
        ("pkg:pypi/onnx_ir", "affected"),
        ("pkg:pypi/onn", None),
        ("pkg:npm/onnx", None),
    ],
)
def test_a_package_url(url, expected):
    assert certainty(parse_advisory(url)) == expected


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([{"introduced": "0"}, {"fixed": "1.17"}], "affected"),
        ([{"introduced": "0"}, {"fixed": "1.16"}], None),
        ([{"introduced": "0"}, {"last_affected": "1.16.0"}], "affected"),
        ([{"introduced": "0"}, {"fixed": "1.10"}, {"introduced": "1.15"}], "affected"),
        ([{"introduced": "1.16.0rc1"}], "affected"),
        ([{"introduced": "2"}], None),
    ],
)
def test_ranges_of_osv(advisory, events, expected):
    assert certainty(advisory(osv(ranges=[{"type": "ECOSYSTEM", "events": events}]))) == expected


def test_listed_versions_of_osv_count_where_ranges_are_of_commits(advisory):
    commits = {"type": "GIT", "repo": "x", "events": [{"introduced": "0"}]}
    assert certainty(advisory(osv(ranges=[commits], versions=["1.15.0", "1.16.0"]))) == "affected"
    assert certainty(advisory(osv(ranges=[commits], versions=["1.15.0"]))) is None


@pytest.mark.parametrize(
    ("versions", "more", "expected"),
    [
        ([{"version": "0", "lessThan": "1.17", "status": "affected"}], {}, "unclear"),
        ([{"version": "0", "lessThan": "1.17", "status": "affected"}], {"packageURL": "pkg:pypi/onnx"}, "affected"),
        ([{"version": "0", "lessThanOrEqual": "1.15", "status": "affected"}], {"packageURL": "pkg:pypi/onnx"}, None),
        ([{"version": "1.16.0", "status": "affected"}], {"collectionURL": "https://pypi.org"}, "affected"),
        ([{"version": "0", "lessThan": "next release", "status": "affected"}], {}, "unclear"),
        ([{"version": "1.16.0", "status": "unaffected"}], {"defaultStatus": "affected"}, None),
        ([{"version": "1.17.0", "status": "unaffected"}], {"defaultStatus": "affected"}, "unclear"),
    ],
)
def test_a_cve_record(advisory, versions, more, expected):
    """A record that names a product alone may mean another package of that name."""
    record = cve(*versions, **more)
    assert certainty(advisory(record)) == expected


def test_rules_of_other_packages_are_not_guessed(advisory):
    """Debian's versions are ordered by other rules than Python's."""
    data = bill(package("zlib", "1:1.2.13.dfsg-1", "deb"), package("lib", "1.2.3", "npm"))
    entry = {"package": {"ecosystem": "Debian:12", "name": "zlib", "purl": "pkg:deb/debian/zlib"}}
    events = [{"introduced": "0"}, {"fixed": "1:1.3"}]
    found = advisory({"id": "DSA-1", "affected": [{**entry, "ranges": [{"type": "ECOSYSTEM", "events": events}]}]})
    assert certainty(found, data) == "unclear"
    assert certainty(parse_advisory("pkg:deb/debian/zlib@1:1.2.13.dfsg-1"), data) == "affected"


def test_the_product_and_the_use_of_the_component():
    data = bill(package("onnx", "1.16.0", required=False))
    product = examine(parse_advisory("pkg:pypi/onnx"), data, "bill")
    assert (product.name, product.digest) == ("net", DIGEST)
    assert [(match.version, match.required) for match in product.matches] == [("1.16.0", False)]
    assert examine(parse_advisory("pkg:pypi/numpy"), data, "bill") is None
    assert examine(parse_advisory("pkg:pypi/numpy"), data, "bill", quick=False).matches == ()


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "3", '{"id": "x", "affected": [{}]}', '{"id": "x", "affected": []}', "[" * 100_000]
)
def test_no_advisory(advisory, text):
    with pytest.raises(InputError, match=r"advisory\.json is"):
        advisory(text)


@pytest.mark.parametrize("text", ["onnx", "no/such/file.json", "pkg:", "pkg:pypi"])
def test_neither_a_url_nor_a_file(text):
    with pytest.raises(InputError, match="package URL"):
        parse_advisory(text)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b'"CycloneDX" onnx',
        b'{"bomFormat": "CycloneDX", "components": ["onnx"]}',
        b'{"bomFormat": "CycloneDX", "components": [{"name": "onnx", "purl": ["onnx"]}]}',
    ],
)
def test_no_bill(data):
    with pytest.raises(VerificationError, match="bill is not a bill of materials"):
        examine(parse_advisory("pkg:pypi/onnx"), data, "bill")


def test_a_bill_may_begin_with_a_byte_order_mark():
    product = examine(parse_advisory("pkg:pypi/onnx"), b"\xef\xbb\xbf" + BILL, "a bill")
    assert product == examine(parse_advisory("pkg:pypi/onnx"), BILL, "a bill")


def test_ten_thousand_bills_parse_each_package_url_once():
    for cached in (affected._package_url, affected._uniform_name):
        cached.cache_clear()
    asked = parse_advisory("pkg:pypi/onnx")
    products = [examine(asked, BILL, "a bill") for _ in range(10_000)]
    assert all(product and product.matches for product in products)
    assert affected._package_url.cache_info().misses == 2  # onnx and onnx-ir; the compiler has none
