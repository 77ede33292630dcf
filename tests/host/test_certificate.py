"""The certificate of the API: what is wrong with its files is said, and a renewed one is used."""

import ssl

import pytest

from node.host.certificate import Certificate, CertificateUnusable
from tests.host.certificates import write


@pytest.fixture
def files(tmp_path):
    return tmp_path / "cert.pem", tmp_path / "key.pem"


def test_a_certificate_is_read(files):
    fingerprint = write(*files)
    certificate = Certificate(*files)
    assert certificate.fingerprint == fingerprint
    assert isinstance(certificate.context, ssl.SSLContext)


def test_what_is_wrong_is_said(files, tmp_path):
    chain, key = files

    def refused() -> str:
        with pytest.raises(CertificateUnusable) as found:
            Certificate(chain, key)
        assert "--tls-key" in found.value.hint or "chmod" in found.value.hint
        return found.value.message

    assert "cert.pem can't be read (No such file or directory)" in refused()
    write(chain, key)
    key.chmod(0o644)
    assert "Other users of this machine can read" in refused()
    key.chmod(0o600)
    write(tmp_path / "other.pem", key)
    assert "they do not belong together" in refused()
    write(chain, key, b"password")
    assert "The key has a password" in refused()
    write(chain, key)
    chain.write_text("nothing")
    assert "has no certificate in PEM" in refused()
    chain.write_bytes(b"\xff\xfe")
    assert "has no certificate in PEM" in refused()
    write(chain, key)
    key.write_text("nothing")
    assert "can't be used" in refused()


def test_a_renewed_certificate_is_used_and_a_damaged_one_is_not(files, caplog):
    first = write(*files)
    certificate = Certificate(*files)
    certificate.renew()
    assert certificate.fingerprint == first
    files[0].write_text("half writ")
    certificate.renew()
    files[0].unlink()
    certificate.renew()
    assert certificate.fingerprint == first
    assert "the certificate stays as it was" in caplog.text
    second = write(*files)
    certificate.renew()
    assert certificate.fingerprint == second
