"""Files that change while a run reads them are found by a stat, whatever was done to them."""

import os

import numpy as np
import pytest

from pretrain.data import SOURCES, byte_source
from pretrain.data.iq import IqSettings
from pretrain.data.synthetic import SyntheticSettings
from pretrain.data.text import TextSettings
from pretrain.errors import DataError, StorageError


def build(source, settings):
    return SOURCES[source].build(settings, sequence_length=4, stride=None, seed=1, name="d")


def overwrite(path):
    with path.open("r+b") as file:
        file.write(b"X")


def overwrite_and_hide_it(path):
    before = path.stat()
    overwrite(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace(path):
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    os.replace(other, path)


def link(path):
    path.rename(path.with_name("other"))
    path.symlink_to(path.with_name("other"))


CHANGES = [
    (overwrite, "written to"),
    (overwrite_and_hide_it, "written to"),
    (lambda path: os.truncate(path, 20), "changed from 64 to 20 bytes"),
    (lambda path: path.unlink(), "removed"),
    (replace, "replaced by another file"),
    (link, "replaced by another file"),
]


def aged(path):
    """Set the times back, so that a change is one of the clock as well, however coarse it is."""
    os.utime(path, ns=(10**18, 10**18))


@pytest.mark.parametrize("kept_open", [True, False])
@pytest.mark.parametrize("kind", ["text", "text folder", "iq", "iq folder", "sigmf"])
@pytest.mark.parametrize(("change", "message"), CHANGES)
def test_a_change_is_found_and_the_file_named(monkeypatch, tmp_path, kind, kept_open, change, message):
    if not kept_open:
        monkeypatch.setattr(byte_source, "KEEP_OPEN", 0)
        monkeypatch.setattr("pretrain.data.text.KEEP_OPEN", 0)
        monkeypatch.setattr("pretrain.data.recordings.KEEP_OPEN", 0)
    folder = tmp_path / "data"
    folder.mkdir()
    path = folder / ("a.sigmf-data" if kind == "sigmf" else "a.cu8")
    for file in (path, folder / "b.cu8"):
        file.write_bytes(bytes(range(64)))
        aged(file)
    if kind == "sigmf":
        (folder / "a.sigmf-meta").write_text('{"global": {"core:datatype": "cu8"}}')
    where = str(folder if "folder" in kind else path)
    windows = build("text", TextSettings(where)) if "text" in kind else build("iq", IqSettings(where))
    windows.check_unchanged()
    windows.read(np.arange(len(windows)))
    windows.check_unchanged()
    change(path)
    with pytest.raises(DataError, match=rf"{path.name}: {message}.* since this run hashed it") as caught:
        windows.check_unchanged()
    assert str(path) in str(caught.value)


def test_a_recording_without_a_window_is_looked_at_too(tmp_path):
    (tmp_path / "a.cu8").write_bytes(bytes(64))
    (tmp_path / "b.cu8").write_bytes(bytes(2))
    windows = build("iq", IqSettings(str(tmp_path)))
    (tmp_path / "b.cu8").unlink()
    with pytest.raises(DataError, match=r"b\.cu8: removed"):
        windows.check_unchanged()


def test_a_file_that_changes_while_it_is_hashed_is_refused(monkeypatch, tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(bytes(64))
    aged(path)
    hash_file = byte_source.hash_file

    def slow(name):
        found = hash_file(name)
        overwrite(path)
        return found

    monkeypatch.setattr(byte_source, "hash_file", slow)
    with pytest.raises(DataError, match=r"a\.txt: was written to or replaced while it was hashed"):
        build("text", TextSettings(str(path)))


def test_what_no_file_holds_cannot_change():
    assert build("text", TextSettings()).check_unchanged() is None
    assert build("synthetic-iq", SyntheticSettings(windows=7)).check_unchanged() is None


def test_a_check_reads_nothing(monkeypatch, tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(bytes(64))
    windows = build("text", TextSettings(str(path)))

    def refused(*_):
        raise StorageError("read")

    for name in ("open", "preadv", "pread", "read"):
        monkeypatch.setattr(os, name, refused)
    windows.check_unchanged()
