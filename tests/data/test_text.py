"""Text: bytes as tokens, documents of a folder, exact counts, and what is refused."""

import errno
import hashlib
import os

import numpy as np
import pytest
import torch

from pretrain.data import SOURCES
from pretrain.data.text import TextSettings
from pretrain.errors import DataError, StorageError


def text(path, *, length=8, stride=None, span=(0.0, 1.0)):
    return SOURCES["text"].build(
        TextSettings(str(path), span), sequence_length=length, stride=stride, seed=1, name="books"
    )


def every(windows):
    return windows.read(np.arange(len(windows)))


@pytest.fixture
def alphabet(tmp_path):
    path = tmp_path / "alphabet.txt"
    path.write_bytes(bytes(range(100)))
    return path


def test_windows_are_tokens_and_their_successors(alphabet):
    windows = text(alphabet)
    assert (windows.kind, windows.vocabulary) == ("tokens", 256)
    assert len(windows) == 12
    assert windows.remainder == 3
    tokens = every(windows)
    assert tokens.dtype == torch.int64
    assert tokens.tolist() == [list(range(8 * i, 8 * i + 9)) for i in range(12)]
    assert windows.labels(np.arange(3)) == ("", "", "")
    assert [windows.identify(i) for i in (0, 11)] == [(str(alphabet), 0), (str(alphabet), 88)]


def test_stride_and_span(alphabet):
    windows = text(alphabet, stride=3, span=(0.1, 0.5))
    assert every(windows).tolist() == [list(range(10 + 3 * i, 19 + 3 * i)) for i in range(11)]
    assert windows.remainder == 1
    assert windows.identify(2) == (str(alphabet), 16)


def test_the_order_of_rows_is_that_of_the_indices(alphabet):
    assert text(alphabet).read(np.asarray([5, 0, 5]))[:, 0].tolist() == [40, 0, 40]


def test_files_carry_their_hash(alphabet):
    (file,) = text(alphabet).files
    assert (file.path, file.bytes) == (str(alphabet), 100)
    assert file.sha256 == hashlib.sha256(bytes(range(100))).hexdigest()


@pytest.mark.parametrize(("size", "windows", "remainder"), [(8, None, None), (9, 1, 0), (10, 1, 1), (17, 2, 0)])
def test_s42_one_token_short_is_refused_and_the_rest_is_counted(tmp_path, size, windows, remainder):
    path = tmp_path / "short.txt"
    path.write_bytes(b"x" * size)
    if windows is None:
        with pytest.raises(DataError, match=r"short\.txt: found 8 tokens .*expected at least 9"):
            text(path)
    else:
        found = text(path)
        assert (len(found), found.remainder) == (windows, remainder)


def test_s43_a_validation_span_without_a_window_is_refused(alphabet):
    with pytest.raises(DataError, match=r"found 5 tokens from token 95 to 100 \(span \[0.95, 1.0\] of 100\)"):
        text(alphabet, span=(0.95, 1.0))


def test_every_byte_is_a_token_below_the_vocabulary(tmp_path):
    """A byte can be no other token than itself, and is never narrowed on the way."""
    path = tmp_path / "bytes.bin"
    path.write_bytes(bytes(range(256)))
    windows = text(path, length=255)
    assert every(windows)[0].tolist() == list(range(256))
    assert windows.vocabulary == 256


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "corpus" / "b").mkdir(parents=True)
    (tmp_path / "corpus" / "b" / "z.txt").write_bytes(b"zz")
    (tmp_path / "corpus" / "a.txt").write_bytes(b"aaaaa")
    (tmp_path / "corpus" / "b" / "empty.md").write_bytes(b"")
    (tmp_path / "corpus" / "c").write_bytes(b"cccc")
    return tmp_path / "corpus"


def test_documents_are_joined_by_one_nul_in_the_order_of_their_names(folder):
    windows = text(folder, length=1, stride=1)
    stream = b"aaaaa\0\0zz\0cccc"
    assert [os.path.relpath(file.path, folder) for file in windows.files] == ["a.txt", "b/empty.md", "b/z.txt", "c"]
    assert bytes([*every(windows)[:, 0].tolist(), int(every(windows)[-1, 1])]) == stream
    assert windows.identify(4) == (str(folder / "a.txt"), 4)
    assert windows.identify(5) == (str(folder / "a.txt"), 5)  # the separator after it
    assert windows.identify(7) == (str(folder / "b" / "z.txt"), 0)
    assert windows.identify(10) == (str(folder / "c"), 0)


def test_a_window_may_cross_several_documents(folder):
    windows = text(folder, length=13, stride=1)
    assert bytes(every(windows)[0].tolist()) == b"aaaaa\0\0zz\0cccc"


def test_a_folder_of_many_files_keeps_few_of_them_open(tmp_path):
    for number in range(300):
        (tmp_path / f"{number:03}").write_bytes(b"%03d" % number)
    opened = len(os.listdir("/proc/self/fd"))
    windows = text(tmp_path, length=3, stride=4)
    assert len(os.listdir("/proc/self/fd")) < opened + 10
    assert bytes(every(windows)[123].tolist()) == b"123\0"
    (tmp_path / "123").unlink()
    (tmp_path / "123").write_bytes(b"???")
    (tmp_path / "124").write_bytes(b"12")
    with pytest.raises(DataError, match=r"124: changed from 3 to 2 bytes since this run hashed it"):
        windows.read(np.asarray([124]))


def test_hidden_files_are_left_out_at_any_depth(folder):
    before = text(folder)
    (folder / ".git").mkdir()
    (folder / ".git" / "index").write_bytes(b"x" * 50)
    (folder / ".hidden").write_bytes(b"x" * 50)
    os.symlink("/nowhere", folder / ".link")
    (folder / "z").mkdir()
    (folder / "z" / ".DS_Store").write_bytes(b"x" * 50)
    assert text(folder).files == before.files
    assert before.warnings == ()


def test_a_file_of_a_folder_with_nul_bytes_is_told_of_and_read(folder):
    (folder / "picture.png").write_bytes(b"\x89PNG\0\0")
    (folder / "wide.txt").write_text("wide", encoding="utf-16")
    (folder / "latin.txt").write_bytes("Straße".encode("latin-1"))
    windows = text(folder)
    (warning,) = windows.warnings
    assert f"NUL bytes in 2 of {len(windows.files)} files, the first of them {folder / 'picture.png'}" in warning
    assert text(folder / "picture.png", length=2).warnings == ()


def test_links_and_special_files_in_a_folder_are_refused(folder):
    os.symlink(folder / "a.txt", folder / "link.txt")
    with pytest.raises(DataError, match=r"link\.txt: expected only regular files .* found a symlink"):
        text(folder)
    (folder / "link.txt").unlink()
    os.mkfifo(folder / "pipe")
    with pytest.raises(DataError, match=r"pipe: .* found a special file"):
        text(folder)


def test_a_link_to_a_file_is_refused(alphabet, tmp_path):
    os.symlink(alphabet, tmp_path / "link.txt")
    with pytest.raises(DataError, match=r"link\.txt: .*symlink"):
        text(tmp_path / "link.txt")


@pytest.mark.parametrize(("content", "message"), [(None, "missing"), (b"", "is empty")])
def test_no_text_is_refused(tmp_path, content, message):
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=rf"text\.txt: {message}") as caught:
        text(path)
    assert caught.value.exit_code == 2


def test_folders_without_text_are_refused(tmp_path):
    with pytest.raises(DataError, match="holds no files"):
        text(tmp_path)
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(DataError, match="found 1 files without a byte"):
        text(tmp_path)


def test_a_file_cut_while_training_is_an_error_and_not_old_memory(alphabet):
    windows = text(alphabet)
    os.truncate(alphabet, 50)
    assert windows.read(np.asarray([0]))[0, 0] == 0
    with pytest.raises(DataError, match=r"alphabet\.txt: expected 100 bytes .* found the end at byte 50"):
        windows.read(np.asarray([6]))


def test_the_builtin_corpus_is_the_topics_of_python_in_order():
    from pydoc_data.topics import topics

    windows = text("builtin:pydoc", length=1, stride=1)
    content = "\0".join(topics[key] for key in sorted(topics)).encode()
    (file,) = windows.files
    assert (file.path, file.bytes) == ("builtin:pydoc", len(content))
    assert file.sha256 == hashlib.sha256(content).hexdigest()
    assert len(windows) == len(content) - 1
    assert bytes(windows.read(np.arange(1000, 1100))[:, 0].tolist()) == content[1000:1100]
    assert windows.identify(77) == ("builtin:pydoc", 77)


def test_other_builtins_are_refused_with_a_near_name():
    with pytest.raises(DataError, match=r"data domain books: builtin:pydocs .* did you mean builtin:pydoc"):
        text("builtin:pydocs")


def test_settings_build_from_their_defaults():
    windows = SOURCES["text"].build(TextSettings(), sequence_length=128, stride=None, seed=1, name="pydoc")
    assert len(windows) > 3000


def test_short_reads_are_read_on_and_an_io_error_is_a_storage_error(alphabet, monkeypatch):
    windows = text(alphabet)
    whole, preadv = every(windows), os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, offset: preadv(fd, [buffers[0][:4]], offset))
    assert every(windows).tolist() == whole.tolist()

    def broken(fd, buffers, offset):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "preadv", broken)
    with pytest.raises(StorageError, match=r"alphabet\.txt: reading 9 bytes at 16 failed: Input/output error"):
        windows.read(np.asarray([2]))
