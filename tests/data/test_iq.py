"""IQ recordings: every datatype, wrong files, folders and the two ways to split."""

import hashlib
import os
import tokenize

import numpy as np
import pytest
import torch

from pretrain.data import SOURCES, byte_source, recordings
from pretrain.data.iq import IqSettings
from pretrain.data.sample_format import FORMATS
from pretrain.errors import DataError

VALUES = np.asarray([0.5, -0.25, 1 - 2**-7, -1, 0, 0.125, -0.5, 0.75], dtype=np.float64)
SAMPLES = [complex(i, q) for i, q in VALUES.reshape(-1, 2).tolist()]


def iq(path, *, length=2, stride=None, **settings):
    return SOURCES["iq"].build(
        IqSettings(str(path), **settings), sequence_length=length, stride=stride, seed=1, name="air"
    )


def every(windows):
    return windows.read(np.arange(len(windows)))


def stored(name):
    """The bytes of VALUES in the datatype `name`, written with numpy's own byte orders."""
    sample_format = FORMATS[name]
    numbers = VALUES * sample_format.full_scale + sample_format.zero
    return numbers.astype(sample_format.component).tobytes()


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_s45_every_datatype_is_read_as_it_is_named(tmp_path, name):
    path = tmp_path / f"recording.{name}"
    path.write_bytes(stored(name))
    windows = iq(path)
    samples = every(windows)
    assert (windows.kind, windows.vocabulary) == ("complex", None)
    assert samples.dtype == torch.complex64
    assert samples.reshape(-1).tolist() == SAMPLES
    assert [windows.identify(i) for i in (0, 1)] == [(str(path), 0), (str(path), 2 * FORMATS[name].bytes)]
    assert windows.files[0].sha256 == hashlib.sha256(stored(name)).hexdigest()


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("cu8", bytes([0, 128, 255, 127]), [-1 + 0j, 127 / 128 - 1j / 128]),
        ("ci8", bytes([0x80, 0x7F, 0, 1]), [-1 + 127j / 128, 1j / 128]),
        ("ci16_le", bytes([0x00, 0x80, 0xFF, 0x7F]), [-1 + 32767j / 32768]),
        ("ci16_be", bytes([0x80, 0x00, 0x7F, 0xFF]), [-1 + 32767j / 32768]),
        ("cf32_le", bytes([0, 0, 0x80, 0x3F, 0, 0, 0, 0xC0]), [1 - 2j]),
        ("cf32_be", bytes([0x3F, 0x80, 0, 0, 0xC0, 0, 0, 0]), [1 - 2j]),
    ],
)
def test_s45_scales_and_byte_orders(tmp_path, name, content, expected):
    path = tmp_path / f"a.{name}"
    path.write_bytes(content)
    assert every(iq(path, length=1)).reshape(-1).tolist() == expected


@pytest.mark.parametrize(
    ("suffix", "means"),
    [("cf32", "cf32_le"), ("cfile", "cf32_le"), ("ci16", "ci16_le"), ("cs16", "ci16_le"), ("CS8", "ci8")],
)
def test_suffixes_of_other_tools(tmp_path, suffix, means):
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(stored(means))
    assert every(iq(path)).reshape(-1).tolist() == SAMPLES


def test_the_setting_says_the_byte_order_that_the_suffix_leaves_open(tmp_path):
    path = tmp_path / "a.cf32"
    path.write_bytes(stored("cf32_be"))
    assert every(iq(path, datatype="cf32_be")).reshape(-1).tolist() == SAMPLES


@pytest.mark.parametrize(
    ("suffix", "datatype"),
    [
        *[("cu8", "ci16_le"), ("cu8", "ci8"), ("cs8", "cu8"), ("CS16", "cf32_le"), ("cf32", "ci16"), ("cfile", "cf64")],
        *[("cf32_le", "cf32_be"), ("ci16_be", "cs16")],
    ],
)
def test_a_setting_that_contradicts_the_suffix_is_refused(tmp_path, suffix, datatype):
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(bytes(range(1, 65)))
    for place in (path, tmp_path):
        with pytest.raises(
            DataError, match=f"the suffix says {suffix}, but the setting `datatype` is {datatype}; leave"
        ):
            iq(place, datatype=datatype)


@pytest.mark.parametrize(
    ("suffix", "datatype"), [("cs16", "ci16_le"), ("cu8", "CU8"), ("ci16", "ci16_be"), ("bin", "cu8")]
)
def test_a_setting_that_agrees_with_the_suffix_is_taken_and_is_what_is_shown(tmp_path, suffix, datatype):
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(bytes(range(1, 65)))
    assert iq(path, datatype=datatype).encoding == datatype.lower()


@pytest.mark.parametrize(
    ("suffix", "datatype", "message"),
    [
        ("ci61_le", None, r"the suffix: ci61_le is not .* did you mean ci16_le\?"),
        ("xyz", None, r"the suffix: xyz is not .* expected one of .*cf32_be"),
        ("cu8", "cf3_le", r"the setting `datatype`: cf3_le is not .* did you mean cf32_le\?"),
        ("", None, "has no suffix that names its datatype; set `datatype`"),
    ],
)
def test_unknown_datatypes_are_refused_with_near_names(tmp_path, suffix, datatype, message):
    path = tmp_path / (f"a.{suffix}" if suffix else "a")
    path.write_bytes(bytes(64))
    with pytest.raises(DataError, match=message) as caught:
        iq(path, datatype=datatype)
    assert str(caught.value).startswith(str(path))
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        ("cf32_le", 7 * 4, "4 bytes from byte 24 on, after 3 samples of 8 bytes"),
        ("cf32_le", 4 * 8 + 1, "1 bytes from byte 32 on, after 4 samples"),
        ("ci16_le", 10, "2 bytes from byte 8 on, after 2 samples of 4 bytes"),
        ("cu8", 9, "1 bytes from byte 8 on, after 4 samples of 2 bytes"),
    ],
)
def test_s45_half_a_sample_at_the_end_is_refused(tmp_path, name, size, message):
    path = tmp_path / f"a.{name}"
    path.write_bytes(bytes(size))
    with pytest.raises(DataError, match=rf"a\.{name}: ends in a part of a sample: {message}"):
        iq(path)


@pytest.mark.parametrize("name", ["cf32_le", "cf32_be", "cf64_le"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [0, 5, 126, 1999])
def test_s45_values_that_are_not_finite_are_named_by_their_offset(monkeypatch, tmp_path, name, value, place):
    monkeypatch.setattr(byte_source, "_SCAN_BYTES", 500)  # no multiple of a sample, and several blocks
    numbers = np.zeros(2000, dtype=FORMATS[name].component)
    numbers[place] = value
    path = tmp_path / f"a.{name}"
    path.write_bytes(numbers.tobytes())
    offset = place // 2 * FORMATS[name].bytes
    with pytest.raises(DataError, match=rf"a\.{name}: sample {place // 2} at byte {offset} has I "):
        iq(path)


def test_a_double_that_no_float_holds_is_not_finite(tmp_path):
    path = tmp_path / "a.cf64_le"
    path.write_bytes(np.asarray([0, 0, 1e300, 0], dtype="<f8").tobytes())
    with pytest.raises(DataError, match="sample 1 at byte 16"):
        iq(path)


@pytest.mark.parametrize(("samples", "windows", "remainder"), [(7, None, None), (8, 1, 0), (9, 1, 1), (16, 2, 0)])
def test_s42_one_sample_short_is_refused_and_the_rest_is_counted(tmp_path, samples, windows, remainder):
    path = tmp_path / "a.cu8"
    path.write_bytes(bytes(2 * samples))
    if windows is None:
        with pytest.raises(DataError, match=r"a\.cu8: found at most 7 samples .* expected at least 8"):
            iq(path, length=8)
    else:
        found = iq(path, length=8)
        assert (len(found), found.remainder) == (windows, remainder)


def test_stride_and_contiguous_split(tmp_path):
    path = tmp_path / "a.ci8"
    path.write_bytes(np.arange(-50, 50).astype(np.int8).tobytes())  # 50 samples
    train = iq(path, length=8, stride=3, span=(0.0, 0.8))
    held_out = iq(path, length=8, span=(0.8, 1.0))
    assert (len(train), train.remainder) == (11, 2)
    assert (len(held_out), held_out.remainder) == (1, 2)
    first = every(train)[:, 0].real * 128
    assert first.tolist() == [-50 + 6 * i for i in range(11)]
    assert every(held_out)[0, 0].real * 128 == -50 + 2 * 40
    last, offset = train.identify(10)
    assert (last, offset) == (str(path), 60)
    assert held_out.identify(0)[1] == 80 >= offset + 2 * 8


@pytest.fixture
def folder(tmp_path):
    """Four recordings of 10, 20, 30 and 3 samples, in three datatypes, and what is none."""
    root = tmp_path / "air"
    (root / "day2").mkdir(parents=True)
    (root / "a.cu8").write_bytes(np.full(20, 128 + 16, dtype=np.uint8).tobytes())
    (root / "b.ci16_be").write_bytes(np.full(40, 8192, dtype=">i2").tobytes())
    np.save(root / "day2" / "c.npy", np.full(30, 0.5 + 0.5j, dtype=np.complex64))
    (root / "day2" / "d.cu8").write_bytes(bytes(6))
    (root / "README.md").write_text("recorded on a roof")
    return root


def test_a_folder_is_read_in_the_order_of_the_names(folder):
    windows = iq(folder, length=5)
    assert len(windows) == 2 + 4 + 6
    assert windows.remainder == 3
    assert [os.path.relpath(file.path, folder) for file in windows.files] == [
        "a.cu8",
        "b.ci16_be",
        "day2/c.npy",
        "day2/d.cu8",
    ]
    mixed = windows.read(np.asarray([11, 0, 5, 6]))
    assert mixed[:, 0].tolist() == [0.5 + 0.5j, 0.125 + 0.125j, 0.25 + 0.25j, 0.5 + 0.5j]
    assert (mixed == mixed[:, :1]).all()


def test_contiguous_span_cuts_every_recording_at_the_same_fraction(folder):
    train, held_out = iq(folder, length=5, span=(0.0, 0.5)), iq(folder, length=5, span=(0.5, 1.0))
    assert (len(train), train.remainder) == (1 + 2 + 3, 2)
    assert (len(held_out), held_out.remainder) == (1 + 2 + 3, 1)
    ends = {train.identify(i)[0]: train.identify(i)[1] for i in range(len(train))}
    begins = [held_out.identify(i) for i in range(len(held_out))]
    assert all(offset > ends[source] for source, offset in begins)


def test_recording_span_takes_whole_recordings(folder):
    train = iq(folder, length=5, split="recording", span=(0.0, 0.5))
    held_out = iq(folder, length=5, split="recording", span=(0.5, 1.0))
    assert [os.path.basename(file.path) for file in train.files] == ["a.cu8", "b.ci16_be"]
    assert [os.path.basename(file.path) for file in held_out.files] == ["c.npy", "d.cu8"]
    assert (len(train), len(held_out), held_out.remainder) == (6, 6, 3)


def test_s43_a_span_without_a_recording_is_refused(tmp_path):
    (tmp_path / "a.cu8").write_bytes(bytes(100))
    with pytest.raises(DataError, match=r"the span \[0.9, 1.0\] takes none of 1 recordings"):
        iq(tmp_path, split="recording", span=(0.9, 1.0))


def test_a_folder_without_a_recording_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing")
    (tmp_path / "samples.bin").write_bytes(stored("cf32_le"))
    with pytest.raises(DataError, match="found no recording among 2 files"):
        iq(tmp_path)
    assert every(iq(tmp_path, datatype="cf32")).reshape(-1).tolist() == SAMPLES


def test_links_in_a_folder_are_refused(folder):
    os.symlink(folder / "a.cu8", folder / "e.cu8")
    with pytest.raises(DataError, match=r"e\.cu8: .* found a symlink"):
        iq(folder)


@pytest.mark.parametrize(("content", "message"), [(None, "missing"), (b"", "is empty")])
def test_no_samples_are_refused(tmp_path, content, message):
    path = tmp_path / "a.cu8"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=rf"a\.cu8: {message}"):
        iq(path)


@pytest.mark.parametrize(
    "array",
    [
        np.asarray(SAMPLES, dtype="<c8"),
        np.asarray(SAMPLES, dtype=">c8"),
        np.asarray(SAMPLES, dtype="<c16"),
        VALUES.astype("<f4").reshape(-1, 2),
        VALUES.astype(">f8").reshape(-1, 2),
    ],
    ids=lambda array: f"{array.dtype.str}-{array.ndim}d",
)
def test_npy_arrays(tmp_path, array):
    path = tmp_path / "a.npy"
    np.save(path, array)
    windows = iq(path)
    assert every(windows).reshape(-1).tolist() == SAMPLES
    assert windows.identify(0) == (str(path), path.stat().st_size - array.nbytes)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((4, 2), dtype=np.int16), r"found int16 of shape \[4, 2\]"),
        (np.zeros((4, 3), dtype=np.float32), r"found float32 of shape \[4, 3\]"),
        (np.zeros(4, dtype=np.float32), r"found float32 of shape \[4\]"),
        (np.zeros((2, 4), dtype=np.complex64), r"found complex64 of shape \[2, 4\]"),
        (np.asfortranarray(np.zeros((4, 2), dtype=np.float32)), "in Fortran order"),
        (np.zeros((4, 2), dtype=np.float16), "found float16"),
        (np.asarray([{}]), "found object"),
    ],
)
def test_npy_arrays_that_are_no_samples(tmp_path, array, message):
    path = tmp_path / "a.npy"
    np.save(path, array, allow_pickle=True)
    with pytest.raises(DataError, match=message):
        iq(path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:5],
        lambda content: content[:20],
        lambda content: b"PK" + content[2:],
        lambda content: content[:6] + b"\x09\x00" + content[8:],
        lambda content: content.replace(b"'shape'", b"'shade'"),
        lambda content: content[:-4],
        lambda content: content + b"\0",
    ],
)
def test_npy_files_that_are_damaged(tmp_path, damage):
    path = tmp_path / "a.npy"
    np.save(path, np.zeros(100, dtype=np.complex64))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=r"a\.npy: "):
        iq(path)


@pytest.mark.parametrize(
    ("header", "version"),
    [
        ("{'descr': ('<c8'", 1),  # TokenError on the way that numpy takes after a SyntaxError
        ("{'descr': (\n", 2),
        ("-" * 9000 + "1", 1),  # RecursionError, or MemoryError
        ("(" * 9000, 1),
        ("[" * 150 + "]" * 150, 1),
        ("{'a' 'b'", 1),
        ("{'descr': (), 'fortran_order': False, 'shape': (2,)}", 1),  # IndexError
        ("{'descr': [(1, '<f4')], 'fortran_order': False, 'shape': (2,)}", 1),
        ("{'descr': '<c8', 'fortran_order': False, 'shape': (1e999,)}", 1),
        ("\0", 1),
    ],
)
def test_npy_headers_that_no_parser_takes(tmp_path, header, version):
    path = tmp_path / "a.npy"
    size = len(header).to_bytes(2 if version == 1 else 4, "little")
    path.write_bytes(b"\x93NUMPY" + bytes([version, 0]) + size + header.encode() + bytes(64))
    with pytest.raises(DataError, match=r"a\.npy: expected a \.npy array: ."):
        iq(path)


@pytest.mark.parametrize(
    "error", [tokenize.TokenError("t"), RecursionError("r"), SyntaxError("s"), MemoryError(), OverflowError("o")]
)
def test_whatever_a_npy_header_raises_names_the_file(monkeypatch, tmp_path, error):
    def broken(file):
        raise error

    monkeypatch.setitem(recordings._NPY_READERS, (1, 0), broken)
    path = tmp_path / "a.npy"
    np.save(path, np.ones(4, dtype=np.complex64))
    with pytest.raises(DataError, match=rf"a\.npy: expected a \.npy array: {str(error) or 'MemoryError'}"):
        iq(path)


def test_npy_with_a_value_that_is_not_finite(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.asarray([0, 0, complex(0, np.nan)], dtype=np.complex64))
    with pytest.raises(DataError, match=r"a\.npy: sample 2 at byte 144 has I 0\.0 and Q nan"):
        iq(path)


def test_npy_and_setting_must_agree(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.ones(4, dtype=np.complex64))
    assert len(iq(path, datatype="cf32")) == 2
    with pytest.raises(DataError, match=r"holds cf32_le, but the setting `datatype` is ci16_le"):
        iq(path, datatype="ci16_le")


def test_a_channel_that_is_not_there(tmp_path):
    path = tmp_path / "a.cu8"
    path.write_bytes(bytes(8))
    assert len(iq(path, channel=0)) == 2
    with pytest.raises(DataError, match="expected `channel` from 0 to 0, found 1"):
        iq(path, channel=1)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_recording_without_any_power_is_refused(monkeypatch, tmp_path, name):
    monkeypatch.setattr(byte_source, "_SCAN_BYTES", 500)
    path = tmp_path / f"a.{name}"
    numbers = np.full(2000, FORMATS[name].zero, dtype=FORMATS[name].component)
    path.write_bytes(numbers.tobytes())
    with pytest.raises(DataError, match=rf"a\.{name}: all 1000 samples are zero"):
        iq(path)
    numbers[-1] += 1
    path.write_bytes(numbers.tobytes())
    assert len(iq(path)) == 500


def test_negative_zeros_have_no_power_either(tmp_path):
    path = tmp_path / "a.cf32"
    path.write_bytes(np.full(8, -0.0, dtype="<f4").tobytes())
    with pytest.raises(DataError, match="all 4 samples are zero"):
        iq(path)


def test_the_folder_names_its_silent_recording(folder):
    (folder / "day2" / "silent.ci16").write_bytes(bytes(64))
    with pytest.raises(DataError, match=r"day2/silent\.ci16: all 16 samples are zero"):
        iq(folder)
