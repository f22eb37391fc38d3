"""What a stranger may put into a file: pickles of every kind, heads of tensors that lie, and bombs of JSON and YAML."""

import io
import json
import pickle
import tarfile
import warnings
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

Maker = Callable[[Path], bytes]  # given the canary, which appears where code is run


class _Runs:
    """Whoever unpickles this calls a function."""

    def __init__(self, function: Callable[..., Any], *words: Any) -> None:
        self._call = (function, words)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._call


def _system(canary: Path) -> _Runs:
    import os

    return _Runs(os.system, f"touch '{canary}'")


def _exec(canary: Path) -> _Runs:
    return _Runs(exec, f"open({str(canary)!r}, 'w').close()")


def _torch_tar(canary: Path) -> bytes:
    """What torch wrote before it wrote pickles in a row, and long before it wrote archives."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name in ("sys_info", "pickle", "storages", "tensors"):
            data = pickle.dumps(_exec(canary))
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return file.getvalue()


def _torch(canary: Path, *, archive: bool) -> bytes:
    file = io.BytesIO()
    torch.save({"model.weight": torch.ones(2), "more": _system(canary)}, file, _use_new_zipfile_serialization=archive)
    return file.getvalue()


class _Scripted(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def _torchscript(canary: Path) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated, and files of it are about
        torch.jit.save(torch.jit.script(_Scripted()), file)
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("archive/extra/evil.pkl", pickle.dumps(_system(canary)))
    return file.getvalue()


def _numpy(canary: Path) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([_exec(canary)], dtype=object), allow_pickle=True)
    return file.getvalue()


def _numpy_archive(canary: Path) -> bytes:
    file = io.BytesIO()
    np.savez(file, weights=np.array([_exec(canary)], dtype=object))
    return file.getvalue()


def _zip_in_zip(canary: Path) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(_system(canary)))
        archive.writestr("../../outside/escaped", b"?")
        archive.writestr("inner.zip", _torch(canary, archive=True))
    return file.getvalue()


PICKLES: Mapping[str, Maker] = {
    "pickle-system": lambda canary: pickle.dumps(_system(canary)),
    "pickle-exec": lambda canary: pickle.dumps(_exec(canary), protocol=0),
    "torch-tar": _torch_tar,
    "torch-row": partial(_torch, archive=False),
    "torch-zip": partial(_torch, archive=True),
    "torchscript": _torchscript,
    "numpy-object": _numpy,
    "numpy-archive": _numpy_archive,
    "zip-in-zip": _zip_in_zip,
}


def _head(header: Any, data: int = 16, length: int | None = None) -> Maker:
    text = header if isinstance(header, bytes) else json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    size = len(text) if length is None else length
    return lambda _: size.to_bytes(8, "little") + text + bytes(data)


def _one(dtype: Any = "F32", shape: Any = (4,), span: Any = (0, 16)) -> dict[str, Any]:
    tensor = {"data_offsets": list(span), "dtype": dtype, "shape": shape}
    return {"__metadata__": {"chunks": "{}"}, "model.weight": tensor}


def _two(first: Any, second: Any) -> dict[str, Any]:
    return {**_one(span=first), "model.width": _one(span=second)["model.weight"]}


_META = b'{"__metadata__":{"chunks":"{}"},'
_TENSOR = b'"a":{"data_offsets":[0,16],"dtype":"F32","shape":[4]}'
HEADS: Mapping[str, Maker] = {
    "head-of-0": _head(b"", length=0),
    "head-of-2^63": _head(_one(), length=2**63),
    "head-of-2^64-1": _head(_one(), length=2**64 - 1),
    "head-beyond-file": _head(_one(), length=4096),
    "head-short": lambda _: b"\x10",
    "negative": _head(_one(span=(-16, 0))),
    "backwards": _head(_one(span=(16, 0))),
    "overlap": _head(_two((0, 16), (0, 16)), 32),
    "hole": _head(_two((0, 16), (32, 48)), 48),
    "more-behind": _head(_one(), 64),
    "less-behind": _head(_one(), 4),
    "name-twice": _head(_META + _TENSOR + b"," + _TENSOR + b"}"),
    "dtype-unknown": _head(_one("F8_E4M3")),
    "dtype-no-text": _head(_one({"pickle": True})),
    "shape-2^63": _head(_one(shape=[2**62, 2**62], span=(0, 16))),
    "shape-2^63-of-0": _head(_one(shape=[0, 2**63 - 1], span=(0, 0)), 0),
    "shape-1e4000": _head(_META + b'"a":{"data_offsets":[0,1%s],"dtype":"F32","shape":[4]}}' % (b"0" * 4000)),
    "shape-negative": _head(_one(shape=[-2, -2])),
    "shape-of-floats": _head(_one(shape=[4.0])),
    "shape-of-truth": _head(_one(shape=[True, 4])),
    "shape-of-100000": _head(_one(shape=[1] * 100_000, span=(0, 4)), 4),
    "span-of-3": _head(_one(span=(0, 8, 16))),
    "name-of-control": _head({**_one(), "a\x1b[2J\n": _one()["model.weight"]}),
    "metadata-strange": _head({**_one(), "__metadata__": {"chunks": "{}", "format": "pt"}}),
    "metadata-bomb": _head({**_one(), "__metadata__": {"chunks": "[" * 100_000}}),
    "box-outside": _head({**_one(), "__metadata__": {"chunks": '{"model.weight":{"offsets":[9],"shape":[8]}}'}}),
    "box-of-2^63": _head(
        {**_one(), "__metadata__": {"chunks": f'{{"model.weight":{{"offsets":[0],"shape":[{2**63 - 1}]}}}}'}}
    ),
    "another-model": _head(_one()),
}

BOMBS: Mapping[str, Maker] = {
    "deep": lambda _: b"[" * 1_000_000,
    "deep-objects": lambda _: b'{"a":' * 200_000,
    "wide": lambda _: b"[" + b"[]," * 5_300_000 + b"[]]\n",
    "huge-integer": lambda _: b'{"schema":' + b"9" * 1_000_000 + b"}\n",
    "huge-exponent": lambda _: b'{"schema":1e999999999}\n',
    "key-twice": lambda _: b'{"schema":1,"schema":2}\n',
    "nan": lambda _: b'{"schema":NaN}\n',
    "surrogate": lambda _: b'{"schema":"\\ud800"}\n',
    "not-utf-8": lambda _: b'{"schema":"\xff\xfe"}\n',
    "mark": lambda _: b"\xef\xbb\xbf{}\n",
    "utf-16": lambda _: '{"schema":1}'.encode("utf-16"),
    "nothing": lambda _: b"",
    "zeros": lambda _: bytes(4096),
    "null": lambda _: b"null\n",
}

# Of a file that is read row by row: more than a reader may hold at once, and more than it need read at all.
ROWS: Mapping[str, Maker] = {
    "saved-rows": lambda _: b'{"event":"saved","seconds":{"steps":0.0},"step":0}\n' * 100_000,
    "back-rows": lambda _: b'{"event":"saved","step":9}\n{"event":"rolled_back","step":9}\n' * 50_000,
    "more-rows": lambda _: b'{"event":"","step":0,"time":0.0}\n' * 3_000_000,
}
CONFIGS: Mapping[str, Maker] = {
    "tag-system": lambda canary: b"run: !!python/object/apply:os.system ['touch %s']\n" % bytes(canary),
    "tag-new": lambda canary: b"run: !!python/object/new:os.system ['touch %s']\n" % bytes(canary),
    "tag-name": lambda _: b"run: {dir: !!python/name:os.system }\n",
    "tag-module": lambda _: b"run: {dir: !!python/module:antigravity }\n",
    "tag-directive": lambda _: b"%TAG ! tag:yaml.org,2002:python/\n---\nrun: {dir: !name:os.system x}\n",
    "anchor-bomb": lambda _: (
        b"a: &a [x, x]\n"
        + b"".join(b"%c: &%c [*%c, *%c, *%c]\n" % (at, at, at - 1, at - 1, at - 1) for at in range(ord("b"), ord("z")))
    ),
    "anchor-of-itself": lambda _: b"run: &a {dir: *a}\n",
    "merge": lambda _: b"run: {<<: {dir: x}}\n",
    "deep": lambda _: b"run: " + b"[" * 200_000,
    "deep-blocks": lambda _: b"".join(b" " * at + b"a:\n" for at in range(700)),
    "environment": lambda _: b"run: {dir: '${oc.env:HOME}'}\n",
    "decode": lambda _: b"run: {dir: '${oc.decode:\"${oc.env:HOME}\"}'}\n",
    "create": lambda _: b"run: {dir: '${oc.create:{a: 1}}'}\n",
    "nested": lambda _: b"run: {dir: '${run.${run.dir}}'}\n",
    "circle": lambda _: b"run: {dir: '${run.dir}'}\n",
    "growing": lambda _: (
        b"run: {dir: x}\ndata: {train: {\n  d0: {source: text, path: 'aaaaaaaaaaaaaaaa'},\n"
        + b"".join(
            b"  d%d: {source: text, path: '${data.train.d%d.path}${data.train.d%d.path}'},\n" % (at, at - 1, at - 1)
            for at in range(1, 60)
        )
        + b"}}\n"
    ),
    "integer": lambda _: b"run: {dir: x}\ntraining: {max_steps: %s}\n" % (b"9" * 100_000),
    "large": lambda _: b"# " + b"x" * 3_000_000,
    "zeros": lambda _: bytes(4096),
    "key-twice": lambda _: b"run: {dir: x}\nrun: {dir: y}\n",
    "documents": lambda _: b"run: {dir: x}\n---\nrun: {dir: y}\n",
    "terminal": lambda _: b'"\\e]0;x\\a\\e[2J": 1\nrun: {dir: "\\e[31m"}\n',
}


def _zip_bomb(_: Path) -> bytes:
    """64 MB, and as large as 64 GB for who trusts its head."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(64 << 20))
        archive.writestr("archive/version", b"3\n")
        archive.writestr("archive/data/0", bytes(64 << 20))
    return file.getvalue().replace((64 << 20).to_bytes(4, "little"), (0xFFFFFF00).to_bytes(4, "little"))


class _Storage:
    """A tensor whose storage is made by a call."""

    def __init__(self, canary: Path) -> None:
        self._canary = canary

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return torch._utils._rebuild_tensor_v2, (_system(self._canary), 0, (2,), (1,), False, {})


def _torch_gadget(canary: Path) -> bytes:
    """What `torch.load` runs while it builds a tensor again, in the archive that torch itself would write."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"model.weight": _Storage(canary)}, protocol=2))
        archive.writestr("archive/version", b"3\n")
        archive.writestr("archive/data/0", bytes(8))
    return file.getvalue()


ARCHIVES: Mapping[str, Maker] = {
    "zip-bomb": _zip_bomb,
    "torch-gadget": _torch_gadget,
    "torch-zip": PICKLES["torch-zip"],
    "pickle-system": PICKLES["pickle-system"],
}
