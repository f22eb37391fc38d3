"""SigMF pairs: captures, headers, trailers, channels, hashes, and metadata that is wrong."""

import hashlib
import json

import numpy as np
import pytest

from pretrain.data import SOURCES
from pretrain.data.iq import IqSettings
from pretrain.errors import DataError


def iq(path, *, length=2, stride=None, **settings):
    return SOURCES["iq"].build(
        IqSettings(str(path), **settings), sequence_length=length, stride=stride, seed=1, name="air"
    )


def ci8(samples):
    """Samples whose I counts up from `samples.start` and whose Q is 1."""
    return np.asarray([[i, 1] for i in samples], dtype=np.int8).tobytes()


def pair(folder, content, captures=({"core:sample_start": 0},), *, datatype="ci8", **fields):
    (folder / "a.sigmf-data").write_bytes(content)
    described = {"core:datatype": datatype, "core:version": "1.2.0"}
    described |= {f"core:{key}": value for key, value in fields.items()}
    meta = folder / "a.sigmf-meta"
    meta.write_text(json.dumps({"global": described, "captures": list(captures), "annotations": []}))
    return meta


def firsts(windows):
    return (windows.read(np.arange(len(windows)))[:, 0].real * 128).tolist()


@pytest.mark.parametrize("suffix", [".sigmf-meta", ".sigmf-data"])
def test_either_file_names_the_pair(tmp_path, suffix):
    meta = pair(tmp_path, ci8(range(10)))
    windows = iq(meta.with_suffix(suffix))
    assert firsts(windows) == [0, 2, 4, 6, 8]
    assert [file.path for file in windows.files] == [str(meta), str(meta.with_suffix(".sigmf-data"))]
    assert windows.files[0].sha256 == hashlib.sha256(meta.read_bytes()).hexdigest()
    assert windows.identify(1) == (str(meta.with_suffix(".sigmf-data")), 4)


def test_a_window_never_crosses_a_capture(tmp_path):
    captures = [{"core:sample_start": start} for start in (0, 5, 6, 11)]
    windows = iq(pair(tmp_path, ci8(range(20)), captures))
    assert firsts(windows) == [0, 2, 6, 8, 11, 13, 15, 17]
    assert windows.remainder == 1 + 1 + 1 + 1


def test_samples_before_the_first_capture_and_without_one(tmp_path):
    assert firsts(iq(pair(tmp_path, ci8(range(9)), [{"core:sample_start": 3}]))) == [0, 3, 5, 7]
    assert firsts(iq(pair(tmp_path, ci8(range(4)), []))) == [0, 2]


def test_contiguous_span_and_captures(tmp_path):
    captures = [{"core:sample_start": start} for start in (0, 7)]
    meta = pair(tmp_path, ci8(range(20)), captures)
    assert firsts(iq(meta, span=(0.0, 0.5))) == [0, 2, 4, 7]
    assert firsts(iq(meta, span=(0.5, 1.0))) == [10, 12, 14, 16, 18]


def test_s45_header_and_trailing_bytes_do_not_shift_the_samples(tmp_path):
    captures = [
        {"core:sample_start": 0, "core:header_bytes": 3},
        {"core:sample_start": 4, "core:header_bytes": 5},
    ]
    content = b"HHH" + ci8(range(4)) + b"hhhhh" + ci8(range(4, 8)) + b"TTTTTTT"
    windows = iq(pair(tmp_path, content, captures, trailing_bytes=7))
    assert firsts(windows) == [0, 2, 4, 6]
    assert [windows.identify(i)[1] for i in range(4)] == [3, 7, 16, 20]


def test_s45_bytes_that_no_field_explains_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"a\.sigmf-data: ends in a part of a sample: 1 bytes from byte 16 on"):
        iq(pair(tmp_path, ci8(range(8)) + b"T"))
    with pytest.raises(DataError, match=r"a\.sigmf-data: 16 bytes are all header and trailer"):
        iq(pair(tmp_path, ci8(range(8)), trailing_bytes=16))


def test_sample_numbers_count_from_the_offset_of_the_whole_recording(tmp_path):
    captures = [{"core:sample_start": start} for start in (1000, 1005)]
    assert firsts(iq(pair(tmp_path, ci8(range(10)), captures, offset=1000))) == [0, 2, 5, 7]


def test_another_name_of_the_data_file(tmp_path):
    meta = pair(tmp_path, b"unused!!", dataset="a.dat")
    (tmp_path / "a.dat").write_bytes(ci8(range(4)))
    assert firsts(iq(meta)) == [0, 2]


def test_big_endian_and_a_bare_datatype(tmp_path):
    numbers = np.arange(8) / 128
    for datatype, stored in (("cf32_be", ">f4"), ("cf32", "<f4"), ("cf64_le", "<f8")):
        windows = iq(pair(tmp_path, numbers.astype(stored).tobytes(), datatype=datatype))
        assert firsts(windows) == [0, 4]


def test_one_channel_of_several(tmp_path):
    frames = np.asarray([[[i, 1], [10 + i, 2], [20 + i, 3]] for i in range(6)], dtype=np.int8)
    meta = pair(tmp_path, frames.tobytes(), num_channels=3)
    with pytest.raises(DataError, match=r"a\.sigmf-meta: holds 3 channels; set `channel` to one of 0 to 2"):
        iq(meta)
    for channel in range(3):
        windows = iq(meta, channel=channel)
        samples = windows.read(np.arange(len(windows))).reshape(-1) * 128
        assert samples.tolist() == [complex(10 * channel + i, channel + 1) for i in range(6)]
        assert windows.identify(1)[1] == 12
    with pytest.raises(DataError, match="expected `channel` from 0 to 2, found 3"):
        iq(meta, channel=3)


def test_two_real_channels_are_i_and_q_only_when_the_settings_say_so(tmp_path):
    content = np.asarray([[i, 1] for i in range(8)], dtype="<i2").tobytes()
    meta = pair(tmp_path, content, datatype="ri16_le", num_channels=2)
    with pytest.raises(DataError, match="set `datatype: ci16_le` to read channel 0 as I and channel 1 as Q"):
        iq(meta)
    with pytest.raises(DataError, match="set `datatype: ci16_le`"):
        iq(meta, datatype="ci16_be")
    windows = iq(meta, datatype="ci16_le")
    samples = windows.read(np.arange(len(windows))).reshape(-1) * 32768
    assert samples.tolist() == [complex(i, 1) for i in range(8)]


@pytest.mark.parametrize(("datatype", "channels"), [("rf32_le", 1), ("ri16_le", 3), ("ru8", 1)])
def test_real_signals_are_refused(tmp_path, datatype, channels):
    with pytest.raises(DataError, match=rf"core:datatype {datatype} with {channels} channels? is a real signal"):
        iq(pair(tmp_path, bytes(48), datatype=datatype, num_channels=channels))


def test_the_setting_must_agree_with_the_metadata(tmp_path):
    meta = pair(tmp_path, ci8(range(8)))
    assert len(iq(meta, datatype="ci8")) == 4
    with pytest.raises(DataError, match="core:datatype is ci8, but the setting `datatype` is cu8"):
        iq(meta, datatype="cu8")


def test_s45_the_sha512_of_the_data_is_verified(tmp_path):
    content = ci8(range(8))
    digest = hashlib.sha512(content).hexdigest()
    assert len(iq(pair(tmp_path, content, sha512=digest))) == 4
    assert len(iq(pair(tmp_path, content, sha512=digest.upper()))) == 4
    with pytest.raises(DataError, match=rf"a\.sigmf-data: expected SHA-512 {digest[:16]}"):
        iq(pair(tmp_path, ci8(range(1, 9)), sha512=digest))


def test_s45_a_value_that_is_not_finite_is_named_by_sample_and_byte(tmp_path):
    numbers = np.zeros(20, dtype="<f4")
    numbers[15] = np.nan
    captures = [{"core:sample_start": 0}, {"core:sample_start": 4, "core:header_bytes": 6}]
    content = numbers[:8].tobytes() + b"hhhhhh" + numbers[8:].tobytes()
    with pytest.raises(DataError, match=r"a\.sigmf-data: sample 7 at byte 62 has I 0.0 and Q nan"):
        iq(pair(tmp_path, content, captures, datatype="cf32_le"))


GLOBAL = {"core:datatype": "ci8"}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("{", "expected SigMF metadata in JSON"),
        ("\udcff", "expected SigMF metadata in JSON"),
        ("[" * 100_000, "expected SigMF metadata in JSON"),
        ('{"global": {}, "global": {}}', "'global' stands there twice"),
        ([], "expected a JSON object, found list"),
        ({"captures": []}, "expected an object `global`, found nothing"),
        ({"global": []}, r"expected an object `global`, found \[\]"),
        ({"global": {}}, "expected a text core:datatype in `global`, found nothing"),
        ({"global": {"core:datatype": 8}}, "expected a text core:datatype"),
        ({"global": {"core:datatype": "ci61_le"}}, r"core:datatype: ci61_le is not .* did you mean ci16_le"),
        ({"global": {"core:datatype": ""}}, "core:datatype: an empty name is not a datatype"),
        ({"global": {"core:datatype": "rx"}}, "core:datatype rx"),
        ({"global": GLOBAL | {"core:metadata_only": True}}, "core:metadata_only is true"),
        ({"global": GLOBAL | {"core:num_channels": 0}}, "core:num_channels to be an integer of at least 1, found 0"),
        ({"global": GLOBAL | {"core:num_channels": True}}, "core:num_channels .* found true"),
        ({"global": GLOBAL | {"core:trailing_bytes": -1}}, "core:trailing_bytes .* found -1"),
        ({"global": GLOBAL | {"core:sha512": "abc"}}, "core:sha512 to be 128 hex digits"),
        ({"global": GLOBAL | {"core:dataset": "../b"}}, "core:dataset to name a file in the same folder"),
        ({"global": GLOBAL | {"core:offset": 1.5}}, "core:offset .* found 1.5"),
        ({"global": GLOBAL, "captures": {}}, "expected `captures` to be a list of objects"),
        ({"global": GLOBAL, "captures": [1]}, "expected `captures` to be a list of objects"),
        ({"global": GLOBAL, "captures": [{}]}, r"captures\[0\]: core:sample_start is missing"),
        ({"global": GLOBAL, "captures": [{"core:sample_start": -1}]}, r"captures\[0\]: .* found -1"),
        ({"global": GLOBAL, "captures": [{"core:sample_start": 2**63}]}, r"captures\[0\]: .* core:sample_start"),
        (
            {"global": GLOBAL | {"core:offset": 9}, "captures": [{"core:sample_start": 8}]},
            "lies before core:offset 9",
        ),
        (
            {"global": GLOBAL, "captures": [{"core:sample_start": 4}, {"core:sample_start": 2}]},
            r"captures sorted by core:sample_start, each once, found \[4, 2\]",
        ),
        (
            {"global": GLOBAL, "captures": [{"core:sample_start": 0}, {"core:sample_start": 0}]},
            "captures sorted by core:sample_start",
        ),
        (
            {"global": GLOBAL, "captures": [{"core:sample_start": 8}]},
            r"a capture begins at sample 8, but .*a\.sigmf-data holds 8 samples",
        ),
    ],
)
def test_metadata_that_is_wrong(tmp_path, document, message):
    (tmp_path / "a.sigmf-data").write_bytes(ci8(range(8)))
    meta = tmp_path / "a.sigmf-meta"
    text = document if isinstance(document, str) else json.dumps(document)
    meta.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError, match=message) as caught:
        iq(meta)
    assert str(caught.value).startswith(str(meta))


def test_half_a_pair_is_refused(tmp_path):
    (tmp_path / "a.sigmf-data").write_bytes(ci8(range(8)))
    with pytest.raises(DataError, match=r"a\.sigmf-meta: missing"):
        iq(tmp_path / "a.sigmf-data")
    with pytest.raises(DataError, match=r"a\.sigmf-data: the metadata beside it, a\.sigmf-meta, is missing"):
        iq(tmp_path)
    meta = pair(tmp_path, ci8(range(8)))
    (tmp_path / "a.sigmf-data").unlink()
    with pytest.raises(DataError, match=r"a\.sigmf-data: missing"):
        iq(meta)


def test_pairs_in_a_folder(tmp_path):
    pair(tmp_path, ci8(range(8)))
    (tmp_path / "b.ci8").write_bytes(ci8(range(50, 54)))
    assert firsts(iq(tmp_path)) == [0, 2, 4, 6, 50, 52]


def test_a_silent_channel_is_refused_and_the_other_one_read(tmp_path):
    content = np.asarray([[5, 5, 0, 0]] * 6, dtype=np.int8).tobytes()
    meta = pair(tmp_path, content, num_channels=2)
    assert firsts(iq(meta, channel=0)) == [5, 5, 5]
    with pytest.raises(DataError, match=r"a\.sigmf-data: all 6 samples of channel 1 are zero"):
        iq(meta, channel=1)
